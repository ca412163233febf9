"""The fast path of a call: it launches at once what was launched before with similar PyTorch tensors.

Its specification is :func:`~gemmill.runtime.api.read.read_call`, followed by
:func:`~gemmill.runtime.api.prepare.launch`. The fast path leads to the same prepared calls and the same errors. Calls
that it does not recognise are read and launched in full, as are all calls under ``GEMMILL_WARM_CALLS=0``.
tests/runtime/api/test_fast_path.py checks that both ways agree.

A launch takes the host 3.5 us; reading, checking and looking up three tensors in Python takes ten times that.
``benchmarks/dispatch.py`` times ``matmul(out=)`` both ways in one run:

- A few plain values select a bucket: the numbers of elements of A and B, whether C and D are passed, and the options. A
  bucket holds a few calls, such as those with a square matrix and its transpose, or with a weight that requires
  gradients and one that does not.
- Within a bucket, the guards of torch.compile compare types, extents, strides, GPU and dispatch keys of all tensors in
  C++. This takes 0.6 us; a key of twelve properties takes 2.6 us. The guards are private to PyTorch. Where a version
  does not have them, :func:`matcher` compares the same in Python.
- Dispatch keys include autocast, transforms, subclasses and modes. :class:`~gemmill.runtime.torch_dispatch.State`
  checks, in 0.1 us, what they do not include but PyTorch's dispatcher would do first.
- The functions have few parameters, because Python fills in each one that a call leaves out: 2.0 us instead of 2.4 us.
- A function private to PyTorch returns the current stream 35 times as fast as ``torch.cuda.current_stream``, which is
  the fallback.
- A call whose gradient must be recorded is recognised too, and its recorder is kept with its guards: 13 us instead of
  63 us through the dispatcher.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import copysign
from typing import Any

from gemmill.runtime.api import caches
from gemmill.runtime.api.prepare import launch
from gemmill.runtime.api.read import Declaration, alpha_of, beta_of
from gemmill.runtime.api.streams import Stream, allocate, allocator, stream_handle, torch_stream
from gemmill.runtime.launch.launcher import PreparedCall
from gemmill.runtime.operands.binding import require_groups
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import Options
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.operands.tensors import TensorView, is_torch
from gemmill.runtime.settings import Settings
from gemmill.runtime.torch_dispatch import Dispatch, State, dispatch_of, is_dispatched, trace_instead

_VALUES = frozenset(Options._fields)
"""Keywords that are plain values."""

_BUCKET_CALLS = 8
"""Most calls in a bucket; the oldest is dropped first."""


@dataclass(slots=True, eq=False)
class RecognisedCall:
    """A prepared call with everything that launching it on PyTorch tensors needs."""

    matches: Callable[..., bool]
    """Whether other tensors, in the same number, are like those of this call."""
    state: State
    """PyTorch state that must be unchanged."""
    launch: Callable[[int, Addresses], None]
    """The shared launcher of such calls; takes a stream and addresses."""
    stream: Callable[[], int]
    """Returns PyTorch's current stream on the GPU of the call."""
    device: int
    shape: tuple[int, ...]
    """Shape of a D to allocate."""
    dtype: str
    """Dtype of a D to allocate."""
    empty: Callable[[], Any]
    """Allocates a D on the current stream."""
    places: tuple[str, ...]
    """Names of the tensors whose addresses the launch takes, in order; a number takes the address 0."""
    recorder: Callable[[Any, Any, Any], Any] | None = None
    """Records the gradient of such a call, given A, B and C; None until first needed."""

    @classmethod
    def of(cls, call: GemmCall, prepared: PreparedCall, tensors: Sequence[Any], writes: bool) -> RecognisedCall:
        """Return the recognised form of a call that was launched on these tensors."""
        d = call.tensors["out"]
        return cls(
            matches=matcher(tensors, lambda given: not is_dispatched(given, writes)),
            state=State.of(tensors),
            launch=prepared.launcher.launch,
            stream=functools.partial(torch_stream(), d.device),
            device=d.device,
            shape=d.shape,
            dtype=d.element,
            empty=allocator(tuple(call.out.shape), call.out.stride(), call.out.dtype, call.out),
            places=call.places,
        )


def launching(declaration: Declaration) -> Callable[..., Any]:
    """Implement ``matmul`` or ``grouped_matmul`` from its declaration: launch the call and return D. Dynamo traces an
    operator instead."""
    name = declaration.name
    path = matmul_path if name == "matmul" else grouped_path
    return trace_instead(path(declaration, dispatch_of(name)), name)


def matmul_path(declaration: Declaration, dispatch: Dispatch | None) -> Callable[..., Any]:
    """Return the fast path of ``matmul``.

    ``dispatch`` handles calls that PyTorch must see first; None where PyTorch has seen them already.
    """

    def short(a: Any, b: Any, *, out: Any = None, c: Any = None, stream: Any = None, **options: Any) -> Any:
        values = bucket = match = recording = None
        if options:
            options = {
                name: x
                for name, x in options.items()
                if name in _VALUES or x is not None or name not in declaration.keywords
            }
            if not options.keys() <= _VALUES:
                return _launch_with_more_tensors(declaration, dispatch, a, b, out, c, stream, options)
            values = _plain_values(options)
        tensors: tuple[Any, ...] = (a, b)
        try:
            a_at, b_at = a.data_ptr(), b.data_ptr()
            c_at = 0 if c is None else c.data_ptr()
            d_at = 0 if out is None else out.data_ptr()
            if c is None or c is out:
                tensors = (a, b) if out is None else (a, b, out)
            else:
                tensors = (a, b, c) if out is None else (a, b, c, out)
            unaligned = (a_at | b_at | c_at | d_at) & 15
            shifts = unaligned and (a_at & 15, b_at & 15, c_at & 15, d_at & 15)  # the guards do not compare these
            bucket = a.numel(), b.numel(), c is None, out is None, c is out, shifts, values
            for candidate in caches.recognised.get(bucket, ()):
                if candidate.matches(*tensors):
                    if candidate.state.is_usual():
                        match = candidate
                    elif dispatch is not None and candidate.state.only_records():
                        recording = candidate
                    break
        except (AttributeError, RuntimeError, TypeError):  # not a PyTorch tensor, a sparse one, or an unhashable option
            bucket = None
        if recording is not None:
            return _launch_and_record(recording, dispatch, a, b, out, c, stream, options)
        if match is None:
            call = {"a": a, "b": b, "out": out, "c": c, "stream": stream, **options}
            return _read_and_launch(declaration, dispatch, bucket, tensors, call)
        if out is None:
            out = match.empty() if stream is None else allocate(a, match.shape, match.dtype, match.device, stream)
            d_at = out.data_ptr()
        match.launch(match.stream() if stream is None else stream_handle(stream), (a_at, b_at, c_at, d_at))
        return out

    return short


def grouped_path(declaration: Declaration, dispatch: Dispatch | None) -> Callable[..., Any]:
    """Return the fast path of ``grouped_matmul``; ``dispatch`` is as in :func:`matmul_path`."""

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
        require_groups(offsets, options.get("counts"), "gemmill.matmul")
        options["offsets"] = offsets
        passed = {name: x for name, x in options.items() if x is not None or name not in declaration.keywords}
        return _launch_with_more_tensors(declaration, dispatch, a, b, out, c, stream, passed)

    return short


def _launch_and_record(
    recognised: RecognisedCall, dispatch: Any, a: Any, b: Any, out: Any, c: Any, stream: Any, options: dict[str, Any]
) -> Any:
    """Run a recognised call and record its gradient."""
    if dispatch.recorder is None or out is not None or stream is not None:
        return dispatch.call(a, b, out=out, c=c, stream=stream, **options)
    if recognised.recorder is None:
        recognised.recorder = dispatch.recorder(a, b, c, options)
    return recognised.recorder(a, b, c)


def _read_and_launch(
    declaration: Declaration, dispatch: Dispatch | None, bucket: Hashable, tensors: Sequence[Any], call: dict[str, Any]
) -> Any:
    """Read and launch a call, remember it in its bucket if it has one, and return D.

    Calls whose epilogue writes further tensors are not remembered, since their addresses need a check each time; nor
    are calls with ``explain``.
    """
    writes = call["out"] is not None
    if dispatch is not None and is_dispatched(tensors, writes):
        return dispatch.call(call.pop("a"), call.pop("b"), **call)
    gemm_call = declaration.read(call)
    prepared = launch(gemm_call)
    fits = not (gemm_call.arguments.outputs or gemm_call.explain)
    if bucket is not None and fits and _is_torch(gemm_call) and is_on():
        bucket_calls = caches.recognised.get(bucket, ())
        if not bucket_calls and len(caches.recognised) >= caches.CALLS:
            caches.recognised.clear()
        new = RecognisedCall.of(gemm_call, prepared, tensors, writes)
        caches.recognised[bucket] = (new, *bucket_calls[: _BUCKET_CALLS - 1])
    return gemm_call.out


def _plain_values(options: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key of the options, after turning alpha and beta into numbers: the hash of a tensor says nothing about
    its value."""
    alpha: float = 1.0
    beta: float | None = 1.0
    if "alpha" in options:
        options["alpha"] = alpha = alpha_of(options["alpha"])
    if "beta" in options:
        options["beta"] = beta = beta_of(options["beta"])
    values = *options.items(), *map(type, options.values())  # types, since 1 and True are equal
    if alpha and beta:
        return values
    return *values, *(copysign(1, x) for x in (alpha, beta) if x == 0)  # signs, since 0.0 and -0.0 are equal


def _launch_with_more_tensors(
    declaration: Declaration,
    dispatch: Dispatch | None,
    a: Any,
    b: Any,
    out: Any,
    c: Any,
    stream: Stream | None,
    options: dict[str, Any],
) -> Any:
    """Run a call with further tensors, such as scales, offsets and operands of an epilogue.

    It is recognised by all tensors and all values, if the tensors are PyTorch tensors.
    """
    for factor, number in (("alpha", alpha_of), ("beta", beta_of)):
        if factor in options:
            options[factor] = number(options[factor])
    others = {name: x for name, x in options.items() if is_torch(x)}
    tensors = {name: x for name, x in (("a", a), ("b", b), ("c", c), ("out", out)) if x is not None} | others
    distinct = [x for name, x in tensors.items() if name != "c" or c is not out]
    match = bucket = None
    with suppress(AttributeError, RuntimeError, TypeError):  # not a PyTorch tensor, a sparse one, or unhashable
        pointers = {name: x.data_ptr() for name, x in tensors.items()}
        if others.keys().isdisjoint(_VALUES) and not any(pointer & 15 for pointer in pointers.values()):
            values = tuple([(name, x, type(x)) for name, x in options.items() if name not in others])
            signs = tuple([copysign(1, x) for _, x, _ in values if isinstance(x, float)])  # 0.0 and -0.0 are equal
            key = a.numel(), b.numel(), c is None, out is None, c is out, (tuple(others), values, signs)
            alternatives = caches.recognised.get(key, ())
            bucket = key
            for candidate in alternatives:
                if candidate.matches(*distinct):
                    match = candidate
                    break
    if match is None or not match.state.is_usual():
        call = {"a": a, "b": b, "out": out, "c": c, "stream": stream, **options}
        return _read_and_launch(declaration, dispatch, None if match else bucket, distinct, call)
    if out is None:
        out = match.empty() if stream is None else allocate(a, match.shape, match.dtype, match.device, stream)
        pointers["out"] = out.data_ptr()
    handle = match.stream() if stream is None else stream_handle(stream)
    match.launch(handle, tuple([pointers.get(name, 0) for name in match.places]))
    return out


def matcher(
    tensors: Sequence[Any], holds: Callable[[Collection[Any]], bool] = lambda tensors: True
) -> Callable[..., bool]:
    """Return a function that tells whether other PyTorch tensors are like these.

    It uses PyTorch's guards, which need distinct tensors; a tensor that is passed twice is compared once. Without
    guards it compares in Python, where ``holds`` checks the dispatch keys.
    """
    guards = _guards()
    if guards is not None:
        places = _places(tensors)
        distinct = [i for i, place in enumerate(places) if i == place]
        check: Callable[..., bool] = guards(*[tensors[i] for i in distinct]).check
        if len(distinct) == len(tensors):
            return check
        return lambda *others: _places(others) == places and check(*[others[i] for i in distinct])
    layouts = _layouts(tensors)
    return lambda *others: _layouts(others) == layouts and holds(others)


def _layouts(tensors: Sequence[Any]) -> list[Hashable]:
    """Return everything that guards compare of each tensor except dispatch keys, and the index of its first
    occurrence."""
    return [
        (type(x), x.shape, x.stride(), x.dtype, x.get_device(), x.requires_grad, place)
        for x, place in zip(tensors, _places(tensors), strict=True)
    ]


def _places(tensors: Sequence[Any]) -> list[int]:
    """Return the index of the first occurrence of each tensor."""
    places: dict[int, int] = {}
    return [places.setdefault(id(x), i) for i, x in enumerate(tensors)]


@functools.cache
def _guards() -> Callable[..., Any] | None:
    """Return the constructor of guards: PyTorch's own for torch.compile (torch/csrc/dynamo/guards.cpp). None where a
    version does not have it, or has another signature."""
    with suppress(ImportError, AttributeError, TypeError):
        guards = importlib.import_module("torch._C._dynamo.guards").TensorGuards
        make = functools.partial(guards, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        make()
        return make
    return None


@functools.cache
def is_on() -> bool:
    """Whether the fast path is on (``GEMMILL_WARM_CALLS``)."""
    return Settings.read().warm_calls


def _is_torch(call: GemmCall) -> bool:
    """Whether all tensors of a call are PyTorch tensors."""
    views = [*call.tensors.values(), *(x for x in call.arguments.values.values() if isinstance(x, TensorView))]
    return all(is_torch(x.owner) for x in views)
