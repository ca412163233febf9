"""``gemmill.matmul`` and ``gemmill.plan``: from tensors to a launch."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import copysign, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec
from weakref import WeakKeyDictionary

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.dtypes import DTYPES, MAX_FLOAT32, DTypeName, default_accumulator, default_output
from gemmill.library.epilogues.parse import PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue, transposed
from gemmill.library.errors import (
    CaptureError,
    CompileError,
    DeviceError,
    GemmillError,
    OperandError,
    UnsupportedProblemError,
)
from gemmill.library.problem import GemmProblem
from gemmill.runtime import driver
from gemmill.runtime.api.invariance import of_any_rows, refuse_atomic_sums, refuse_shared_k
from gemmill.runtime.launch.grid import is_empty
from gemmill.runtime.launch.kernel import Kernel, load
from gemmill.runtime.launch.launcher import Launcher, Resets
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.operands.arguments import NO_ARGUMENTS, EpilogueArguments, read_arguments
from gemmill.runtime.operands.binding import bind
from gemmill.runtime.operands.bound_arguments import BoundArgument, bind_arguments, staged
from gemmill.runtime.operands.gemm import OPERANDS, Addresses, Gemm
from gemmill.runtime.operands.groups import bind_groups
from gemmill.runtime.operands.overlap import refuse_shared_memory
from gemmill.runtime.operands.reading import as_words, unpacked, view
from gemmill.runtime.operands.shapes import d_shape, grouped_shape, groups_kind
from gemmill.runtime.operands.tensors import TORCH_DTYPES, TensorView, is_torch
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import Candidate, Choice, Rows
from gemmill.runtime.select.kernels.faults import faults, needs_swap

if TYPE_CHECKING:
    from gemmill.runtime.compile.pool import Outcome

CACHED_LAUNCHERS = 1024
"""Signatures (shapes, strides, dtypes, ...) that :func:`matmul` keeps ready; the least recently used goes first."""

_Call = ParamSpec("_Call")

Stream = Any
"""A handle as an int (0: the legacy default stream), a ``torch.cuda.Stream``, or an object with ``__cuda_stream__``."""


class Options(NamedTuple):
    """What a call asks for beside its tensors."""

    alpha: float = 1.0
    beta: float | None = None
    out_dtype: Any = None
    accumulator: DTypeName | None = None
    tf32: bool = False
    fast_accumulation: bool = True
    registry: Registry | None = None
    kernel: str | GemmConfig | None = None
    sm_count: int | None = None
    deterministic: bool = False
    batch_invariant: bool = False
    autotune: int | None = None
    quick: bool = False
    dtypes: tuple[Any, Any] = (None, None)
    """``a_dtype`` and ``b_dtype``."""


_VALUES = frozenset(Options._fields) - {"dtypes"}
"""Arguments of :func:`matmul` that are plain values, and all that a call of two or three matrices can take."""


class _Ready(NamedTuple):
    """What :func:`matmul` keeps for a signature."""

    launcher: Launcher | Resets | None
    """What there is to launch: where D is empty no kernel, but resets of an epilogue's outputs."""
    stream: Callable[[], int]
    """What gives the stream of a call that names none."""
    device: int
    shape: tuple[int, ...]
    """Shape of D."""
    dtype: DTypeName
    """Dtype of D."""


class _Known(NamedTuple):
    """A signature that :func:`matmul` recognises without a key."""

    matches: Callable[..., bool]
    """Whether tensors, as many as those it was made of, have it."""
    ready: _Ready
    places: tuple[str, ...]
    """What the caller calls the tensors whose addresses a launch takes, in order; of numbers it takes 0."""


@dataclass(slots=True)
class _Slot:
    """Where the entry of a signature is, once it is made."""

    ready: _Ready | None = None
    known: _Known | None = None
    """What recognises it: made once, where signatures alternate that :data:`_Like` does not tell apart."""


@functools.lru_cache(CACHED_LAUNCHERS)
def _slot(key: Hashable) -> _Slot:
    """The slot of a signature, made when first asked for: of all bounded mappings that threads can share, lru_cache
    looks a key up fastest."""
    return _Slot()


class Done(NamedTuple):
    """What a call that was done the general way leaves."""

    out: Any
    ready: _Ready | None
    """Where the next call like it may be recognised by its tensors: not where an epilogue writes to some of them, whose
    addresses are checked each time, nor the first time."""
    places: tuple[str, ...]
    """As :attr:`_Known.places`."""


_Like = tuple[int, int, bool, bool, bool, Hashable]
"""What tells most calls apart at little cost: elements of A and B, whether C and D are given and the same, options."""
_known: dict[_Like, _Known] = {}
"""The last signature of calls like each other; of as many as there are launchers."""


@functools.cache
def _guards() -> Callable[..., Any] | None:
    """What makes such tests of PyTorch tensors: its own for torch.compile, which compare types, extents, strides, GPU
    and dispatch keys in C++ at a third of the cost of a key (torch/csrc/dynamo/guards.cpp). None where a version has
    none, or makes them otherwise: keys do everything then."""
    with suppress(ImportError, AttributeError, TypeError):
        guards = importlib.import_module("torch._C._dynamo.guards").TensorGuards
        make = functools.partial(guards, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        make()
        return make
    return None


def _recognising(tensors: Collection[Any], ready: _Ready, places: tuple[str, ...] = OPERANDS) -> _Known | None:
    """What recognises tensors like these; None where nothing does. Guards want each tensor once."""
    if len(set(map(id, tensors))) == len(tensors) and all(map(is_torch, tensors)) and (guards := _guards()):
        return _Known(guards(*tensors).check, ready, places)
    return None


def _remember(like: _Like, known: _Known | None) -> None:
    """Have the next call like these recognised at once."""
    if known is not None:
        if len(_known) >= CACHED_LAUNCHERS and like not in _known:
            _known.clear()
        _known[like] = known


_kernels: WeakKeyDictionary[Registry, dict[tuple[int, str], Kernel]] = WeakKeyDictionary()
_lock = threading.Lock()
_shared_registry: list[Registry] = []


def default_registry() -> Registry:
    """The registry of calls that name none: the shipped manifests and the default store."""
    with _lock:
        if not _shared_registry:
            _shared_registry.append(Registry())
        return _shared_registry[0]


def documented_by(general: Callable[_Call, Done]) -> Callable[[Callable[..., Any]], Callable[_Call, Any]]:
    """A decorator of what takes the arguments of another function and returns its ``out``."""

    def documented(call: Callable[..., Any]) -> Callable[_Call, Any]:
        call = functools.wraps(general)(call)
        call.__signature__ = inspect.signature(general).replace(return_annotation=Any)  # type: ignore[attr-defined]
        return call

    return documented


def call_by_tensors(
    general: Callable[..., Done], a: Any, b: Any, out: Any, c: Any, stream: Stream, options: dict[str, Any]
) -> Any:
    """A call with other tensors beside A, B, C and D, such as scales, offsets and an epilogue's: recognised by all of
    them and by all values, if the tensors are PyTorch's, or done the general way."""
    for factor, read in (("alpha", float), ("beta", beta_of)):
        if factor in options:
            options[factor] = read(options[factor])
    others = {name: x for name, x in options.items() if is_torch(x)}
    tensors = {name: x for name, x in (("a", a), ("b", b), ("c", c), ("out", out)) if x is not None} | others
    guarded = [x for name, x in tensors.items() if name != "c" or c is not out]
    known = like = None
    pointers: dict[str, int] = {}
    with suppress(AttributeError, RuntimeError, TypeError):  # no PyTorch tensor, a sparse one, or what has no hash
        pointers = {name: x.data_ptr() for name, x in tensors.items()}
        if others.keys().isdisjoint(_VALUES) and not any(pointer & 15 for pointer in pointers.values()):
            values = tuple([(name, x) for name, x in options.items() if name not in others])
            signs = tuple([copysign(1, x) for _, x in values if isinstance(x, float)])  # 0.0 and -0.0 are equal
            like = a.numel(), b.numel(), c is None, out is None, c is out, (tuple(others), values, signs)
            if (found := _known.get(like)) is not None and found.matches(*guarded):
                known = found
    if known is None:
        done = general(a, b, out=out, c=c, stream=stream, **options)
        if like is not None and done.ready is not None:
            passed = {name: options.get(name) for name in done.places if name not in tensors}
            if all(x is None or isinstance(x, int | float) for x in passed.values()):  # no tensor of another library
                _remember(like, _recognising(guarded, done.ready, done.places))
        return done.out
    ready = known.ready
    if out is None:
        out = _allocate(a, ready.shape, ready.dtype, ready.device, stream)
        pointers["out"] = out.data_ptr()
    if ready.launcher is not None:
        # Not ready's own stream: another library's call may have made it.
        handle = _torch_stream()(ready.device) if stream is None else stream_handle(stream)
        ready.launcher.launch(handle, tuple([pointers.get(name, 0) for name in known.places]))
    return out


def _short_of_a_warm_call(general: Callable[_Call, Done]) -> Callable[_Call, Any]:
    """:func:`matmul` with a short way for what most calls are: PyTorch tensors, and nothing but plain values beside
    them. Parameters that a call leaves out cost it time, each of them, and so the short way has few."""
    named = frozenset(inspect.signature(general).parameters)

    @documented_by(general)
    def matmul(a: Any, b: Any, *, out: Any = None, c: Any = None, stream: Stream = None, **options: Any) -> Any:
        if options:
            options = {name: x for name, x in options.items() if name in _VALUES or x is not None or name not in named}
            if not options.keys() <= _VALUES:
                return call_by_tensors(general, a, b, out, c, stream, options)
            if "alpha" in options:
                options["alpha"] = float(options["alpha"]) + 0.0  # no -0.0, which the key would take for 0.0
            if "beta" in options:
                options["beta"] = beta_of(options["beta"])
        values = tuple(options.items()) if options else None
        known = key = like = None
        given: tuple[Any, ...]
        try:
            pointers: Addresses = (
                a.data_ptr(),
                b.data_ptr(),
                0 if c is None else c.data_ptr(),
                0 if out is None else out.data_ptr(),
            )
            unaligned = (pointers[0] | pointers[1] | pointers[2] | pointers[3]) & 15
            if not unaligned:  # which guards do not tell
                like = a.numel(), b.numel(), c is None, out is None, c is out, values
                if c is None or c is out:
                    given = (a, b) if out is None else (a, b, out)
                else:
                    given = (a, b, c) if out is None else (a, b, c, out)
                found = _known.get(like)
                if found is not None and found.matches(*given):
                    known = found
            if known is None:  # raw properties, two microseconds of work; flat: tuples within it cost time
                key = (
                    a.shape,
                    a.stride(),
                    a.dtype,
                    a.get_device(),
                    b.shape,
                    b.stride(),
                    b.dtype,
                    b.get_device(),
                    None if c is None else c is out or (c.shape, c.stride(), c.dtype, c.get_device()),
                    None if out is None else (out.shape, out.stride(), out.dtype, out.get_device()),
                    unaligned and tuple(p & 15 for p in pointers),
                    values,
                )
        except (AttributeError, RuntimeError, TypeError):  # no PyTorch tensor, or a sparse one
            pass
        ready: _Ready | None
        if known is not None:
            ready = known.ready
        elif key is None:
            return general(a, b, out=out, c=c, stream=stream, **options).out
        else:
            slot = _slot(key)
            ready = slot.ready
            if ready is not None and like is not None:
                slot.known = slot.known or _recognising(given, ready)
                _remember(like, slot.known)
        if ready is None:
            tensors, out, handle = _read(a, b, c, out, options.get("out_dtype"), stream)
            ready = _prepare(tensors, handle, Options(**options))
            if not any(_may_be_negated(tensor) for tensor in tensors.values()):
                slot.ready = ready
            pointers = _addresses(tensors)
        else:
            if out is None:
                out = _allocate(a, ready.shape, ready.dtype, ready.device, stream)
                pointers = (*pointers[:3], out.data_ptr())
            handle = ready.stream() if stream is None else stream_handle(stream)
        if ready.launcher is not None:
            ready.launcher.launch(handle, pointers)
        return out

    return matmul


def _may_be_negated(tensor: TensorView) -> bool:
    """Whether a tensor may be PyTorch's view of the imaginary parts of a conjugate: every stride is even. Its elements
    are then negated on the way out of memory, if a bit says so that no key has (:func:`view` refuses it)."""
    steps = [step for extent, step in zip(tensor.shape, tensor.strides, strict=True) if extent > 1]
    return tensor.dtype in ("f16", "f32", "f64") and bool(steps) and not any(step % 2 for step in steps)


@_short_of_a_warm_call
def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    out_dtype: Any = None,
    accumulator: DTypeName | None = None,
    tf32: bool = False,
    fast_accumulation: bool = True,
    a_scale: Any = None,
    b_scale: Any = None,
    a_zero: Any = None,
    b_zero: Any = None,
    a_dtype: Any = None,
    b_dtype: Any = None,
    stream: Stream = None,
    registry: Registry | None = None,
    kernel: str | GemmConfig | None = None,
    sm_count: int | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    autotune: int | None = None,
    quick: bool = False,
    epilogue: str | None = None,
    **operands: Any,
) -> Done:
    """``alpha * a @ b + beta * c`` by the conventions of ``torch.matmul``; returns ``out``.

    ``a`` is (..., M, K) or (K,), ``b`` (..., K, N) or (K,); batch extents broadcast. Operands are PyTorch tensors or
    anything with ``__dlpack__`` or ``__cuda_array_interface__``, all on one GPU, read in place: majorness follows from
    the strides. What is not aligned to 16 bytes may be copied first, into memory that the stream keeps, where that is
    faster. ``c`` broadcasts over the batch and may be ``out``; otherwise ``out`` must overlap no operand. ``beta`` is 1
    where ``c`` is given. With ``beta=0`` the values of ``c`` are not read.

    ``out`` is allocated by PyTorch or CuPy where ``a`` is theirs, in ``out_dtype`` (default: that of the wider of
    ``a`` and ``b``; bf16 for fp8, s32 for 8-bit integers). ``accumulator`` is f32 by default, s32 for integers, f64
    for f64. f32 operands are multiplied as f32, or with ``tf32`` in the 10 bits of mantissa that tensor cores read.
    fp8 sums stay in the tensor cores, which keep about 13 bits, or without ``fast_accumulation`` move to f32 registers
    every 128 products.

    ``a_scale`` (..., M, K/128) and ``b_scale`` (..., K/128, N/128), in f32 and rounded up, scale fp8 operands in blocks
    of 1 x 128 and 128 x 128 (DeepSeek-V3); their sums are always promoted. Any strides will do; ``a_scale`` is read
    fastest where it is contiguous along M.

    One operand may be narrower (s8, u8, e4m3, e5m2, s4, u4) than the other's bf16 or f16: weights, K-major, are widened
    in registers. ``b_dtype`` says what a tensor of bytes holds: 4-bit elements lie two in a byte along K, the even one
    in the low half, so that ``b`` is the transpose of (..., N, K/2). ``b_scale`` (..., K/group, N) and ``b_zero``, in
    the dtype of ``a`` and contiguous along N, make of them (b - zero) * scale, rounded to that dtype after each step;
    the group is 128, 64 or 32, whichever K/group, rounded up, tells. ``a_dtype``, ``a_scale`` (..., M, K/group;
    contiguous along M) and ``a_zero`` do the same for a narrow ``a``.

    ``epilogue`` says what is stored instead, as in ``"d = gelu(alpha * acc + bias[n])"``, and its operands and outputs
    follow by name: ``bias=``. ``x[m]`` is a vector (M,) or (..., M), ``x[n]`` (N,) or (..., N), ``x[batch]`` (...),
    ``x[m, n]`` broadcasts to D, ``x`` is a number or a tensor of one element; each is f32, bf16 or f16. Tensors of
    outputs are given too, and hold the results afterwards. With ``gate`` and ``up``, the sums of columns 2 j and
    2 j + 1 of B, D has N / 2 columns. See docs/epilogues.md.

    ``kernel`` names one kernel instead of selecting one from ``registry`` (default: the shipped kernel sets). Either
    may run the transposed problem, D^T = B^T A^T, on the same memory.
    ``sm_count`` bounds the SMs that the launch uses, so that kernels beside it, of communication say, have the others.

    ``deterministic`` refuses what could give other bits when the same call runs again on the same GPU: sums in an
    epilogue. ``batch_invariant`` promises besides that the bits of a row of ``out`` depend neither on how many rows nor
    on how many matrices there are: one kernel serves every M, a compromise (docs/kernels.md). ``a`` must be contiguous
    along K, ``c`` and ``out`` along N, and they must be aligned as packed rows are. ``autotune`` times the best so many
    kernels on these operands, once for a problem and GPU, and keeps the fastest in the registry's store; D and other
    outputs are written elsewhere meanwhile. ``quick`` is for problems that are launched a few times only, such as
    prompts with an M of their own: where nothing was measured, the kernel is chosen in some 10 us, not half a
    millisecond or more, and is 1 to 2% slower on average (docs/tuning.md).

    Work goes to ``stream``, by default PyTorch's current stream on the GPU of ``a``, or the legacy default stream where
    ``a`` is no PyTorch tensor. Gradients are not recorded.

    Raises OperandError for operands that do not fit, UnsupportedProblemError where no kernel serves the problem,
    ConfigError where ``kernel`` names none, CompileError, ToolchainError or PackError where it cannot be built or read,
    DeviceError where the GPU cannot run it, CaptureError where the kernel is not loaded yet, or kernels are to be
    timed, and the stream is being captured.
    """
    options = Options(
        float(alpha),
        beta_of(beta),
        out_dtype,
        accumulator,
        tf32,
        fast_accumulation,
        registry,
        kernel,
        sm_count,
        deterministic,
        batch_invariant,
        autotune,
        quick,
        (a_dtype, b_dtype),
    )
    scales = {"a_scale": a_scale, "b_scale": b_scale, "a_zero": a_zero, "b_zero": b_zero}
    passed = read_arguments(epilogue, operands, handle_of(a, stream))
    return multiply_views(a, b, c, out, stream, options, passed, **scales)


def multiply_views(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    stream: Stream,
    options: Options,
    passed: EpilogueArguments = NO_ARGUMENTS,
    **others: Any,
) -> Done:
    """:func:`matmul` where not all operands are PyTorch's, or there are others: scales, offsets, counts, addresses, an
    epilogue's."""
    tensors, out, handle = _read(a, b, c, out, options.out_dtype, stream, options.dtypes, passed.epilogue, **others)
    layout = tuple((n, t.shape, t.strides, t.dtype, t.device, t.writable, t.ptr & 15) for n, t in tensors.items())
    signs = copysign(1, options.alpha), copysign(1, options.beta or 0)  # 0.0 and -0.0 are equal
    slot = _slot((layout, options, signs, passed.key))
    ready = slot.ready
    is_warm = ready is not None
    if ready is None:
        slot.ready = ready = _prepare(tensors, handle, options, passed)
    else:
        refuse_shared_memory(tensors["out"], passed)  # addresses are not in the key
    if ready.launcher is not None:
        ready.launcher.launch(handle, (*_addresses(tensors), *passed.addresses))
    return Done(out, ready if is_warm and not passed.outputs else None, (*OPERANDS, *passed.values))


def plan(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    out_dtype: Any = None,
    accumulator: DTypeName | None = None,
    tf32: bool = False,
    fast_accumulation: bool = True,
    a_scale: Any = None,
    b_scale: Any = None,
    a_zero: Any = None,
    b_zero: Any = None,
    a_dtype: Any = None,
    b_dtype: Any = None,
    offsets: Any = None,
    counts: Any = None,
    addresses: Any = None,
    stream: Stream = None,
    registry: Registry | None = None,
    kernel: str | GemmConfig | None = None,
    sm_count: int | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    autotune: int | None = None,
    quick: bool = False,
    epilogue: str | None = None,
    **operands: Any,
) -> Plan:
    """Everything that :func:`matmul` does short of the launch, done once; ``plan()`` then launches.

    Takes and raises what :func:`matmul` does, with ``offsets`` or ``counts`` what :func:`gemmill.grouped_matmul` does,
    with ``addresses`` what :func:`gemmill.array_matmul` does. Without ``stream``, each launch goes to the stream that
    is PyTorch's current one by then, or to the legacy default stream where ``a`` is not PyTorch's.
    """
    dtypes = a_dtype, b_dtype
    others = {"a_scale": a_scale, "b_scale": b_scale, "a_zero": a_zero, "b_zero": b_zero}
    others |= {"offsets": offsets, "counts": counts, "addresses": addresses}
    passed = read_arguments(epilogue, operands, handle_of(a, stream))
    tensors, out, handle = _read(a, b, c, out, out_dtype, stream, dtypes, passed.epilogue, **others)
    options = Options(
        float(alpha),
        beta_of(beta),
        out_dtype,
        accumulator,
        tf32,
        fast_accumulation,
        registry,
        kernel,
        sm_count,
        deterministic,
        batch_invariant,
        autotune,
        quick,
        dtypes,
    )
    gemm, choice, launcher = _choose(tensors, handle, options, passed)
    follow = _stream_to_follow(tensors["a"], handle, stream)
    told = [name for name, dtype in zip("ab", dtypes, strict=True) if dtype is not None]
    return Plan(gemm.problem, tensors, out, choice, launcher, follow, passed, told)


def beta_of(beta: Any) -> float | None:
    """``beta`` as :class:`Options` holds it: a number, since a tensor's hash says nothing of its value."""
    return None if beta is None else float(beta)


def stream_handle(stream: Stream) -> int:
    """The ``CUstream`` of a stream as an int."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    raise OperandError(
        f"stream is {stream!r}; pass a CUstream handle as an int, a torch.cuda.Stream or an object with __cuda_stream__"
    )


def handle_of(a: Any, stream: Stream) -> int:
    """The stream that a call goes to, as an int: PyTorch's current one where none is named and ``a`` is its tensor."""
    if stream is not None:
        return stream_handle(stream)
    return _torch_stream()(a.get_device()) if is_torch(a) and a.is_cuda else 0


def _stream_to_follow(a: TensorView, handle: int, stream: Stream) -> Callable[[], int]:
    """What gives the stream of launches to come: where none was named and ``a`` is PyTorch's, its current one."""
    if stream is None and is_torch(a.owner):
        return functools.partial(_torch_stream(), a.device)
    return functools.partial(_fixed_stream, handle, stream)


def _fixed_stream(handle: int, _stream: Stream) -> int:
    """A plan's stream, bound together with the object it was given as, which may destroy the stream when it goes."""
    return handle


@functools.cache
def _torch_stream() -> Callable[[int], int]:
    """PyTorch's current stream on a GPU; ``torch.cuda.current_stream`` costs 35 times as much."""
    get: Callable[[int], int] = importlib.import_module("torch")._C._cuda_getCurrentRawStream
    return get


def _read(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    out_dtype: Any,
    stream: Stream,
    dtypes: tuple[Any, Any] = (None, None),
    epilogue: Epilogue = PLAIN,
    **others: Any,
) -> tuple[dict[str, TensorView], Any, int]:
    """Views of the operands, the output (allocated if need be) and the stream of a call."""
    handle = handle_of(a, stream)
    tensors = {"a": view(a, "a", handle)}
    device = tensors["a"].device
    tensors["b"] = view(b, "b", handle)
    for name, dtype in zip("ab", dtypes, strict=True):
        if dtype is not None:
            other = (tensors["b"].shape[-2:-1] or tensors["b"].shape) if name == "a" else tensors["a"].shape[-1:]
            told = _dtype_name(dtype, f"{name}_dtype")
            tensors[name] = unpacked(name, tensors[name], told, other[0] if other else 0)
    if c is not None:
        tensors["c"] = view(c, "c", handle)
    if others.get("addresses") is not None:
        others["addresses"] = as_words(others["addresses"], "addresses")
    tensors |= {name: view(other, name, handle) for name, other in others.items() if other is not None}
    dtype = default_output(_wider(tensors)) if out_dtype is None else _dtype_name(out_dtype)
    if out is None:
        kind = groups_kind(tensors)
        if kind == "addresses":
            raise OperandError("out is missing: with addresses, pass one of the matrices to be written")
        shapes = tensors["a"].shape, tensors["b"].shape
        shape = grouped_shape(*shapes, tensors[kind].shape, kind, epilogue) if kind else d_shape(*shapes, epilogue)
        out = _allocate(a, shape, dtype, device, stream)
    tensors["out"] = view(out, "out", handle)
    if out_dtype is not None and tensors["out"].dtype != dtype:
        raise OperandError(f"out is {tensors['out'].dtype} and out_dtype {dtype}; they must be equal")
    return tensors, out, handle


def _wider(tensors: dict[str, TensorView]) -> DTypeName:
    """The dtype of the wider of A and B."""
    return max(tensors["a"].dtype, tensors["b"].dtype, key=lambda dtype: DTYPES[dtype].bits)


def _addresses(tensors: dict[str, TensorView]) -> Addresses:
    return tuple(tensors[name].ptr if name in tensors else 0 for name in OPERANDS)


def _dtype_name(dtype: Any, argument: str = "out_dtype") -> DTypeName:
    """gemmill's name of a dtype that a caller wrote for an argument."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype  # type: ignore[return-value]
    known = TORCH_DTYPES.get(str(dtype).removeprefix("torch."))
    if known is None:
        raise OperandError(f"{argument} is {dtype!r}; gemmill knows {', '.join(DTYPES)}")
    return known


@functools.cache
def _torch_empty(dtype: DTypeName) -> Callable[..., Any]:
    """``torch.empty`` of one dtype."""
    torch = importlib.import_module("torch")
    return functools.partial(torch.empty, dtype=getattr(torch, DTYPES[dtype].torch))


def _allocate(a: Any, shape: tuple[int, ...], dtype: DTypeName, device: int, stream: Stream) -> Any:
    """A new D from the library that ``a`` comes from."""
    if is_torch(a):
        empty = _torch_empty(dtype)
        if stream is None or (handle := stream_handle(stream)) == _torch_stream()(device):
            return empty(shape, device=a.device)
        # PyTorch reuses memory in the order of the stream it was allocated on.
        cuda = importlib.import_module("torch").cuda
        with cuda.stream(cuda.ExternalStream(handle, device=a.device)):
            return empty(shape, device=a.device)
    typestr = DTYPES[dtype].typestr
    if type(a).__module__.partition(".")[0] == "cupy" and typestr is not None:
        cupy = importlib.import_module("cupy")
        # CuPy, too, reuses memory in the order of a stream: here of the one that is to write it.
        with a.device, cupy.cuda.ExternalStream(handle_of(a, stream)):
            return cupy.empty(shape, dtype=typestr)
    raise OperandError(f"out is missing, and gemmill cannot allocate {dtype} for a {type(a).__qualname__}: pass out=")


def _choose(
    tensors: dict[str, TensorView], handle: int, options: Options, passed: EpilogueArguments = NO_ARGUMENTS
) -> tuple[Gemm, Choice | None, Launcher | Resets | None]:
    """Select, build, load and bind the kernel of a call."""
    alpha, beta, accumulator = options.alpha, options.beta, options.accumulator
    registry, sm_count = options.registry, options.sm_count
    _check_promises(options, passed.epilogue, "addresses" in tensors)
    beta_is_read = _check_factors(alpha, beta, "c" in tensors, passed)
    if accumulator is None:
        accumulator = default_accumulator(_wider(tensors))
    elif accumulator not in DTYPES:
        raise OperandError(f"accumulator is {accumulator!r}; gemmill knows {', '.join(DTYPES)}")
    for factor, value in (("alpha", alpha), ("beta", beta)):
        # Kernels with sums of f64 take doubles.
        if accumulator != "f64" and value is not None and isfinite(value) and abs(value) > MAX_FLOAT32:
            raise OperandError(f"{factor} is {value}; kernels take a float32, at most {MAX_FLOAT32:.4g}")
    if sm_count is not None and (type(sm_count) is not int or sm_count < 1):
        raise OperandError(f"sm_count is {sm_count!r}; it must be a positive integer, or None for all SMs")
    if beta is None:
        beta = 1.0 if beta_is_read else 0.0
    if tensors["out"].dtype == "s32":
        for factor, value in (("alpha", alpha), ("beta", beta)):
            if not value.is_integer() or abs(value) >= 1 << 31:
                raise OperandError(
                    f"{factor} is {value}; an s32 D is exact and takes whole numbers below 2^31: use out_dtype='f32'"
                )
    kind = groups_kind(tensors)
    binder = (
        functools.partial(bind_groups, groups=tensors[kind], kind=kind)
        if kind
        else functools.partial(bind, may_stack=passed.may_stack)
    )
    gemm = binder(
        tensors["a"],
        tensors["b"],
        tensors["out"],
        tensors.get("c"),
        accumulator,
        tf32=options.tf32,
        promote=0 if options.fast_accumulation else 4,
        a_scale=tensors.get("a_scale"),
        b_scale=tensors.get("b_scale"),
        a_zero=tensors.get("a_zero"),
        b_zero=tensors.get("b_zero"),
        epilogue=passed.epilogue,
    )
    extras = bind_arguments(
        passed.epilogue,
        passed.values,
        tensors["out"],
        len(tensors["a"].shape) > 1,
        len(tensors["b"].shape) > 1,
        gemm.problem.batch if gemm.problem.batching == "grouped" else None,
    )
    refuse_shared_memory(tensors["out"], passed)
    gemm = _with_majors(gemm, passed.epilogue, extras, options.batch_invariant)
    device = tensors["a"].device
    if is_empty(gemm.problem):
        return gemm, None, Resets(device, extras) if extras else None
    if options.batch_invariant:
        gemm = of_any_rows(gemm)
    if registry is None:
        registry = default_registry()
    if sm_count is not None and sm_count >= driver.sm_count(device):
        sm_count = None  # no bound

    def launcher(name: str, swapped: bool) -> Launcher:
        kernel = _load(registry, name, device, handle)
        return Launcher(gemm, kernel, alpha, beta, swapped, sm_count, extras)

    if options.kernel is not None:
        return gemm, None, launcher(*_named(options.kernel, gemm.problem, options.batch_invariant))
    if options.autotune is not None:
        from gemmill.runtime.api.autotune import autotuned

        def time(candidates: list[Candidate]) -> list[float | None]:
            return _time(tensors, handle, passed, registry, candidates, launcher)

        name = driver.device_name(device)
        choice = autotuned(registry, gemm.problem, options.autotune, sm_count, name, time)
    else:
        rows: Rows = "n" if gemm.is_transposed else "m"
        choice = registry.select(gemm.problem, sm_count, rows if options.batch_invariant else None, options.quick)
    return gemm, choice, launcher(choice.name, choice.swap_ab)


def _check_promises(options: Options, epilogue: Epilogue, is_array: bool) -> None:
    """OperandError where options contradict each other, or an epilogue cannot keep what they promise."""
    for option in ("deterministic", "batch_invariant"):
        if getattr(options, option):
            refuse_atomic_sums(epilogue, option)
    if options.quick:
        for option in ("kernel", "autotune", "sm_count", "batch_invariant"):
            if getattr(options, option) not in (None, False):
                raise OperandError(
                    f"quick chooses a kernel at once, and {option} is given, which chooses otherwise: pass one of them"
                )
    count = options.autotune
    if count is None:
        return
    if type(count) is not int or count < 1:
        raise OperandError(f"autotune is {count!r}; it must be a positive integer, how many kernels to time, or None")
    if options.kernel is not None:
        raise OperandError("kernel names the kernel, and autotune looks for the fastest: pass one of them")
    for option in ("deterministic", "batch_invariant"):
        if getattr(options, option):
            raise OperandError(
                f"autotune and {option} are both given, but kernels sum in different orders, and which of them is the "
                "fastest may change with the timing and with M: pass one of them, or kernel="
            )
    if is_array:
        raise OperandError(
            "autotune is given with addresses, but while kernels are timed results must be written elsewhere than "
            "addresses says: leave out autotune"
        )


def _named(kernel: str | GemmConfig, problem: GemmProblem, batch_invariant: bool) -> tuple[str, bool]:
    """The name of the kernel that a call names, and whether it is to run the transposed problem."""
    name = kernel if isinstance(kernel, str) else kernel_name(kernel)
    config = parse_name(name)  # which checks a config made by hand as well
    if batch_invariant:
        refuse_shared_k(config)
    swapped = needs_swap(config, problem)
    if swapped is None:
        raise UnsupportedProblemError(f"kernel {name} does not fit: it needs {' and '.join(faults(config, problem))}")
    return name, swapped


def _time(
    tensors: dict[str, TensorView],
    handle: int,
    passed: EpilogueArguments,
    registry: Registry,
    candidates: list[Candidate],
    launcher: Callable[[str, bool], Launcher],
) -> list[float | None]:
    """Microseconds of each of some kernels on the operands of a call, None of those that cannot be built or launched;
    what they write goes elsewhere. The error of the first where that is all of them."""
    from gemmill.runtime.launch.timing import scratch, time_launches

    device = tensors["a"].device
    if driver.is_capturing(device, handle):
        raise CaptureError(
            f"autotune is to time {len(candidates)} kernels, which cannot be done while the stream is captured into a "
            "CUDA graph: before the capture, call gemmill.plan(...) or gemmill.matmul(...) once with the same autotune "
            "and operands of these shapes, strides and dtypes"
        )
    failed: dict[str, GemmillError] = {}

    def note(outcome: Outcome) -> None:
        if outcome.error is not None:
            failed[outcome.name] = outcome.error

    with suppress(CompileError):  # told below, kernel by kernel
        registry.warm([candidate.name for candidate in candidates], on_done=note)
    launchers: dict[Candidate, Launcher] = {}
    errors: list[GemmillError] = []
    for candidate in candidates:
        error = failed.get(candidate.name)
        if error is None:
            try:
                launchers[candidate] = launcher(candidate.name, candidate.swap_ab)
                continue
            except (CompileError, UnsupportedProblemError, DeviceError) as refusal:
                error = refusal
        logging.getLogger(__name__).warning("autotune leaves out %s: %s", candidate.name, error)
        errors.append(error)
    if not launchers:
        raise errors[0]
    written = {OPERANDS.index("out"): tensors["out"]}
    for place, (name, value) in enumerate(passed.values.items(), len(OPERANDS)):
        if name in passed.outputs and isinstance(value, TensorView):
            written[place] = value
    addresses = [*_addresses(tensors), *passed.addresses]
    with scratch(device, [*written.values()]) as elsewhere:
        for place, address in zip(written, elsewhere, strict=True):
            addresses[place] = address
        launches = [functools.partial(_launch, launch, tuple(addresses)) for launch in launchers.values()]
        times = time_launches(device, handle, launches, [candidate.us for candidate in launchers])
    found = dict(zip(launchers, times, strict=True))
    return [found.get(candidate) for candidate in candidates]


def _launch(launcher: Launcher, addresses: Addresses, stream: int) -> None:
    launcher.launch(stream, addresses)


def _with_majors(gemm: Gemm, epilogue: Epilogue, bound: tuple[BoundArgument, ...], as_written: bool = False) -> Gemm:
    """The GEMM with an epilogue whose matrices are moved by TMA, where it can move them; ``as_written``: where the
    caller says so, since whether it can depends on M."""
    if not any(x.kind == "matrix" for x in epilogue.passed):
        return gemm
    if gemm.problem.batching != "strided":
        if epilogue.majors:
            named = " and ".join(epilogue.majors)
            raise OperandError(
                f"the epilogue names a major of {named}, but TMA moves no matrices of groups: leave it out"
            )
        return gemm
    movable = staged(epilogue, bound)
    if as_written:
        return gemm
    text = spelling(transposed(movable) if gemm.is_transposed else movable)
    return replace(gemm, problem=replace(gemm.problem, epilogue=text))


def _check_factors(alpha: float, beta: float | None, has_c: bool, passed: EpilogueArguments) -> bool:
    """Whether beta scales anything; OperandError where C, alpha or beta is passed and not read, or C is missing."""
    epilogue = passed.epilogue
    if passed.text is not None and epilogue.reads_c != has_c:
        if has_c:
            raise OperandError(f"c is passed, but the epilogue `{epilogue}` does not read it")
        raise OperandError(f"the epilogue `{epilogue}` reads c: pass c=")
    if alpha != 1 and "alpha" not in epilogue.factors:
        raise OperandError(f"alpha is {alpha}, but the epilogue `{epilogue}` does not read it")
    beta_is_read = "beta" in epilogue.factors and (has_c or not epilogue.reads_c)
    if beta and not beta_is_read:
        if "beta" not in epilogue.factors:
            raise OperandError(f"beta is {beta}, but the epilogue `{epilogue}` does not read it")
        raise OperandError(f"beta is {beta}, but there is no c to scale: pass c=, or leave beta out")
    return beta_is_read


def _prepare(
    tensors: dict[str, TensorView], handle: int, options: Options, passed: EpilogueArguments = NO_ARGUMENTS
) -> _Ready:
    """What :func:`matmul` keeps of a call."""
    _, _, launcher = _choose(tensors, handle, options, passed)
    out = tensors["out"]
    return _Ready(launcher, _stream_to_follow(tensors["a"], handle, None), out.device, out.shape, out.dtype)


def _load(registry: Registry, name: str, device: int, handle: int) -> Kernel:
    """A kernel of a registry on a GPU, compiled and loaded if need be, but not while the stream is being captured."""
    with _lock:
        kernels = _kernels.setdefault(registry, {})
    kernel = kernels.get((device, name))
    if kernel is None:
        if driver.is_capturing(device, handle):
            raise CaptureError(
                f"kernel {name} is not loaded on GPU {device} yet, and cannot be while the stream is captured into a "
                "CUDA graph: before the capture, call gemmill.plan(...) or gemmill.matmul(...) once with operands of "
                "these shapes, strides and dtypes"
            )
        kernel = kernels[device, name] = load(device, registry.get(name))
    return kernel
