"""The short way of a warm call: what was launched before with PyTorch tensors like these is launched at once.

The plain version is the specification: :func:`~gemmill.runtime.api.read.read_call`, then
:func:`~gemmill.runtime.api.prepare.launch`. What is here leads to the same prepared calls and the same errors; all that
it does not recognise goes the plain way, the only one under ``GEMMILL_WARM_CALLS=0``. tests/runtime/api/test_warm.py
holds both equal, with and without PyTorch's private parts.

It exists because a launch takes the host 3.5 us, and reading, checking and looking up three tensors in Python ten times
that; ``benchmarks/dispatch.py`` times ``matmul(out=)`` both ways in one run. Each trick, with what it gained where it
was measured ("Host side of a call" in docs/performance):

- Guards of torch.compile compare types, extents, strides, GPU and dispatch keys of all tensors in C++: 0.6 us where a
  key of twelve properties takes 2.6, of which making it 1.9. They are private to PyTorch: where a version has none,
  keys do everything. Dispatch keys tell autocast, transforms, subclasses and modes; what they do not tell of what
  PyTorch's dispatcher would do first is asked in 0.1 us (:class:`~gemmill.runtime.traced.State`).
- Which guards to ask is found by a handful of plain values that tell most calls apart, the call's bucket. It holds a
  few calls, such as those of a square matrix and its transpose, of a weight that requires gradients and one that does
  not, and of one matrix in and out of inference mode or PyTorch's dispatcher.
- Keys serve what guards do not tell: many signatures that alternate, or A and B the same tensor. They are flat, and the
  guards stay beside them: 2.5 us where making guards anew takes 3.8.
- Few parameters, as Python fills in each that a call leaves out: 2.0 us where it took 2.4.
- The current stream by a function private to PyTorch, in a 35th of the time of ``torch.cuda.current_stream``; which
  serves where there is none.
- A call whose gradient is to be recorded is recognised too, and what records it is kept beside its guards: 13 us where
  the way by the dispatcher takes 63.
- Calls with other tensors, scales, offsets or an epilogue's, are recognised by guards and values: 7 us where reading
  them anew takes 35.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import copysign
from typing import Any, ParamSpec

from gemmill.library.dtypes import DTypeName
from gemmill.runtime.api import caches
from gemmill.runtime.api.outputs import allocate, allocator
from gemmill.runtime.api.prepare import launch
from gemmill.runtime.api.read import alpha_of, beta_of
from gemmill.runtime.api.streams import Stream, stream_handle, torch_stream
from gemmill.runtime.launch.prepared import PreparedCall
from gemmill.runtime.operands.call import GemmCall, Options
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.operands.tensors import TensorView, is_torch
from gemmill.runtime.settings import Settings
from gemmill.runtime.traced import TRACED, Seen, State, as_operator, is_dispatched, trace_instead

_Call = ParamSpec("_Call")
Read = Callable[..., GemmCall]
"""Reads a call: one of the public functions, as it is declared."""

_VALUES = frozenset(Options._fields)
"""Keywords that are plain values, and all that the shortest way takes beside A, B, C and D."""


_ALIKE = 4
"""Calls that a bucket holds; the one that is longest there goes first."""


def never(*_: Any) -> bool:
    """That no tensors are known."""
    return False


@dataclass(slots=True, eq=False)
class WarmCall:
    """A prepared call, with all at hand that launching it on PyTorch tensors takes."""

    launch: Callable[[int, Addresses], None]
    """Of the launcher that calls like it share: a stream, addresses."""
    stream: Callable[[], int]
    """What gives PyTorch's current stream on its GPU."""
    device: int
    shape: tuple[int, ...]
    """Of a D to be allocated."""
    dtype: DTypeName
    """Of a D to be allocated."""
    empty: Callable[[], Any]
    """Allocates a D on the current stream."""
    places: tuple[str, ...]
    """What the caller calls the tensors whose addresses it takes, in order; of numbers it takes 0."""
    matches: Callable[..., bool] = never
    """Whether tensors, as many as it was made of, are like those."""
    state: State | None = None
    """What must be as usual besides; None where none are like those."""
    recorded: Callable[[Any, Any, Any], Any] | None = None
    """Of A, B and C, where gradients are recorded of calls like it; once there was one."""

    def is_for(self, tensors: Collection[Any], writes: bool) -> bool:
        """Whether a call of its key is one of a kernel alone; ``writes``: to a D that is given."""
        if self.state is not None and self.matches(*tensors) and self.state.is_usual():
            return True
        return not is_dispatched(tensors, writes)


def plainly(read: Callable[_Call, GemmCall]) -> Callable[_Call, Any]:
    """What launches the call that it reads, and returns D: the plain version."""

    @_documented_by(read)
    def plain(*arguments: Any, **keywords: Any) -> Any:
        call = read(*arguments, **keywords)
        launch(call)
        return call.out

    return plain


def by_values(read: Callable[_Call, GemmCall]) -> Callable[_Call, Any]:
    """:func:`plainly`, with the shortest way for what most calls are: A, B, perhaps C and D, and plain values."""
    return _documented_by(read)(short_by_values(read, as_operator(read.__name__)))


def short_by_values(read: Read, seen: Seen | None) -> Callable[..., Any]:
    """The shortest way of calls, and what they become where PyTorch is to see them; None where it has."""
    named = frozenset(inspect.signature(read).parameters)

    def short(a: Any, b: Any, *, out: Any = None, c: Any = None, stream: Any = None, **options: Any) -> Any:
        values = warm = entry = bucket = recording = None
        if options:
            options = {name: x for name, x in options.items() if name in _VALUES or x is not None or name not in named}
            if not options.keys() <= _VALUES:
                return _with_others(read, seen, a, b, out, c, stream, options)
            values = _plain_values(options)
        try:
            pointers: Addresses = (
                a.data_ptr(),
                b.data_ptr(),
                0 if c is None else c.data_ptr(),
                0 if out is None else out.data_ptr(),
            )
            if c is None or c is out:
                given: tuple[Any, ...] = (a, b) if out is None else (a, b, out)
            else:
                given = (a, b, c) if out is None else (a, b, c, out)
            unaligned = (pointers[0] | pointers[1] | pointers[2] | pointers[3]) & 15
            if not unaligned:  # which guards do not tell
                bucket = a.numel(), b.numel(), c is None, out is None, c is out, values
                for found in caches.recognised.get(bucket, ()):
                    if found.matches(*given):
                        state: Any = found.state
                        if state.is_usual():
                            warm = found
                        elif seen is not None and state.only_records():
                            recording = found
                        break
            if warm is None and recording is None:
                entry = caches.warm(_key(a, b, c, out, unaligned and tuple([x & 15 for x in pointers]), values))
                if (known := entry.value) is not None and (seen is None or known.is_for(given, out is not None)):
                    warm = known
        except (AttributeError, RuntimeError, TypeError):  # no PyTorch tensor, a sparse one, or what has no hash
            entry = None
        if recording is not None:
            return _record(recording, seen, a, b, out, c, stream, options)
        if warm is None:
            return _plain_once(entry, read, seen, a, b, out=out, c=c, stream=stream, **options)
        if entry is not None and bucket is not None:
            entry.value = _recognise(bucket, warm, given)
        if out is None:
            out = warm.empty() if stream is None else allocate(a, warm.shape, warm.dtype, warm.device, stream)
            pointers = (*pointers[:3], out.data_ptr())
        warm.launch(warm.stream() if stream is None else stream_handle(stream), pointers)
        return out

    return short


def _key(a: Any, b: Any, c: Any, out: Any, offsets: Any, values: Any) -> tuple[Hashable, ...]:
    """What tells calls from others: their tensors, how far addresses are from aligned ones, and options."""
    return (
        (type(a), type(b)),  # a fake one of a real one's layout has no memory
        a.shape,
        a.stride(),
        a.dtype,
        a.get_device(),
        b.shape,
        b.stride(),
        b.dtype,
        b.get_device(),
        None if c is None else c is out or (type(c), c.shape, c.stride(), c.dtype, c.get_device()),
        None if out is None else (type(out), out.shape, out.stride(), out.dtype, out.get_device()),
        offsets,
        values,
    )


def _record(warm: WarmCall, seen: Any, a: Any, b: Any, out: Any, c: Any, stream: Any, options: dict[str, Any]) -> Any:
    """A call like one before it, but that its gradient is to be recorded."""
    if seen.recorded is None or out is not None or stream is not None:
        return seen.call(a, b, out=out, c=c, stream=stream, **options)
    if warm.recorded is None:
        warm.recorded = seen.recorded(a, b, c, options)
    return warm.recorded(a, b, c)


def _plain_once(
    entry: caches.Entry[WarmCall] | None, read: Read, seen: Seen | None, *arguments: Any, **keywords: Any
) -> Any:
    """Launch a call the plain way, and keep it in its entry of the cache, if it has one and may be kept; returns D."""
    tensors = (*arguments, keywords["c"], keywords["out"])
    if seen is not None and is_dispatched(tensors, writes=keywords["out"] is not None):
        return seen.call(*arguments, **keywords)
    call = read(*arguments, **keywords)
    prepared = launch(call)
    if entry is not None and _is_on() and _is_torch(call):
        entry.value = _warm(call, prepared)
    return call.out


def _plain_values(options: dict[str, Any]) -> tuple[Any, ...]:
    """What tells options from others, once alpha and beta are numbers: a tensor's hash says nothing of its value."""
    alpha: float = 1.0
    beta: float | None = 1.0
    if "alpha" in options:
        options["alpha"] = alpha = alpha_of(options["alpha"])
    if "beta" in options:
        options["beta"] = beta = beta_of(options["beta"])
    values = *options.items(), *map(type, options.values())  # 1 and True are equal
    if alpha and beta:
        return values
    return *values, *(copysign(1, x) for x in (alpha, beta) if x == 0)  # 0.0 and -0.0 are equal


def by_tensors(read: Callable[_Call, GemmCall]) -> Callable[_Call, Any]:
    """:func:`plainly`, with a short way for calls that have further tensors, offsets perhaps by position."""
    return _documented_by(read)(short_by_tensors(read, as_operator(read.__name__)))


def short_by_tensors(read: Read, seen: Seen | None) -> Callable[..., Any]:
    """The short way of calls with further tensors; the rest as for :func:`short_by_values`."""
    named = frozenset(inspect.signature(read).parameters)

    def short(
        a: Any,
        b: Any,
        offsets: Any = None,
        *,
        out: Any = None,
        c: Any = None,
        stream: Stream | None = None,
        **options: Any,
    ) -> Any:
        options["offsets"] = offsets
        given = {name: x for name, x in options.items() if x is not None or name not in named}
        return _with_others(read, seen, a, b, out, c, stream, given)

    return short


def _with_others(
    read: Read, seen: Seen | None, a: Any, b: Any, out: Any, c: Any, stream: Stream | None, options: dict[str, Any]
) -> Any:
    """A call with tensors beside A, B, C and D, such as scales, offsets and an epilogue's: recognised by all of them
    and by all values, if the tensors are PyTorch's.

    Not where an epilogue writes to some, whose addresses are to be checked each time, nor where the call is to be
    explained; nor before the second time, as guards take longer to make than they save once.
    """
    for factor, number in (("alpha", alpha_of), ("beta", beta_of)):
        if factor in options:
            options[factor] = number(options[factor])
    others = {name: x for name, x in options.items() if is_torch(x)}
    tensors = {name: x for name, x in (("a", a), ("b", b), ("c", c), ("out", out)) if x is not None} | others
    guarded = [x for name, x in tensors.items() if name != "c" or c is not out]
    warm = bucket = None
    pointers: dict[str, int] = {}
    with suppress(AttributeError, RuntimeError, TypeError):  # no PyTorch tensor, a sparse one, or what has no hash
        pointers = {name: x.data_ptr() for name, x in tensors.items()}
        if others.keys().isdisjoint(_VALUES) and not any(pointer & 15 for pointer in pointers.values()):
            values = tuple([(name, x, type(x)) for name, x in options.items() if name not in others])
            signs = tuple([copysign(1, x) for _, x, _ in values if isinstance(x, float)])  # 0.0 and -0.0 are equal
            asked = a.numel(), b.numel(), c is None, out is None, c is out, (tuple(others), values, signs)
            alike = caches.recognised.get(asked, ())
            bucket = asked
            for found in alike:
                if found.matches(*guarded):
                    if found.state.is_usual():  # type: ignore[union-attr]
                        warm = found
                    break
    if warm is None:
        if seen is not None and is_dispatched(guarded, writes=out is not None):
            return seen.call(a, b, out=out, c=c, stream=stream, **options)
        remembers = bucket is not None and _is_on()
        call = read(a, b, out=out, c=c, stream=stream, **options)
        prepared = launch(call)
        if remembers and prepared.launches > 1 and _is_torch(call) and not (call.arguments.outputs or call.explain):
            _recognise(bucket, _warm(call, prepared), guarded)
        return call.out
    if out is None:
        out = warm.empty() if stream is None else allocate(a, warm.shape, warm.dtype, warm.device, stream)
        pointers["out"] = out.data_ptr()
    handle = warm.stream() if stream is None else stream_handle(stream)
    warm.launch(handle, tuple([pointers.get(name, 0) for name in warm.places]))
    return out


def _warm(call: GemmCall, prepared: PreparedCall) -> WarmCall:
    d = call.tensors["out"]
    stream = functools.partial(torch_stream(), d.device)
    empty = allocator(tuple(call.out.shape), call.out.stride(), call.out.dtype, call.out)
    return WarmCall(prepared.launcher.launch, stream, d.device, d.shape, d.dtype, empty, call.places)


def _recognise(bucket: Hashable, warm: WarmCall, tensors: Collection[Any]) -> WarmCall:
    """Have the next call like one of these tensors recognised by guards, which want each tensor once; returns it with
    the guards. What it has already may be of another state of PyTorch, as in inference mode."""
    is_known = warm.matches is not never and warm.matches(*tensors)
    if not is_known and len(set(map(id, tensors))) == len(tensors) and (guards := _guards()):
        warm = replace(warm, matches=guards(*tensors).check, state=State.of(tensors), recorded=None)
    if warm.matches is not never:
        alike = caches.recognised.get(bucket, ())
        if not alike and len(caches.recognised) >= caches.CALLS:
            caches.recognised.clear()
        if warm not in alike:
            caches.recognised[bucket] = (warm, *alike[: _ALIKE - 1])
    return warm


@functools.cache
def _guards() -> Callable[..., Any] | None:
    """What makes guards: PyTorch's own for torch.compile (torch/csrc/dynamo/guards.cpp). None where a version has none,
    or makes them otherwise."""
    with suppress(ImportError, AttributeError, TypeError):
        guards = importlib.import_module("torch._C._dynamo.guards").TensorGuards
        make = functools.partial(guards, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        make()
        return make
    return None


@functools.cache
def _is_on() -> bool:
    """Whether warm calls may be recognised."""
    return Settings.read().warm_calls


def _is_torch(call: GemmCall) -> bool:
    """Whether all tensors of a call are PyTorch's."""
    views = [*call.tensors.values(), *(x for x in call.arguments.values.values() if isinstance(x, TensorView))]
    return all(is_torch(x.owner) for x in views)


def _documented_by(read: Callable[_Call, GemmCall]) -> Callable[[Callable[..., Any]], Callable[_Call, Any]]:
    """A decorator of what takes the arguments of a function that reads a call, and returns its D. Dynamo traces the
    call of an operator in its place."""

    def documented(function: Callable[..., Any]) -> Callable[_Call, Any]:
        function = functools.wraps(read)(function)
        function.__signature__ = inspect.signature(read).replace(return_annotation=Any)  # type: ignore[attr-defined]
        trace_instead(function, TRACED[read.__name__])
        return function

    return documented
