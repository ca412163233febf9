"""``gemmill.matmul`` and ``gemmill.plan``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.library.problem import Regime
from gemmill.runtime.api.fast_path import launching
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import Declaration, declares
from gemmill.runtime.api.streams import Stream, stream_to_follow
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.operands.tensors import Tensor
from gemmill.runtime.registry import Registry
from gemmill.runtime.torch_dispatch import refuse_dispatched

# Keywords of one subject stand on one line.
# fmt: off


@declares(launching)
def matmul(
    a: Tensor, b: Tensor, *, out: Tensor | None = None, c: Tensor | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None,
    accumulator: DTypeName | None = None, tf32: bool = False, fast_accumulation: bool = True,
    a_scale: Tensor | float | None = None, b_scale: Tensor | float | None = None,
    a_zero: Tensor | None = None, b_zero: Tensor | None = None, a_dtype: object = None, b_dtype: object = None,
    stream: Stream | None = None, registry: Registry | None = None,
    kernel: str | GemmConfig | None = None, slices: int | None = None, sm_count: int | None = None,
    deterministic: bool = False, batch_invariant: bool = False, autotune: int | None = None, quick: bool = False,
    objective: Regime = "sustained", explain: bool = False,
    epilogue: str | None = None, **operands: Tensor | float,
) -> Any:
    """``alpha * a @ b + beta * c`` by the conventions of ``torch.matmul``; returns ``out``.

    ``a`` is (..., M, K) or (K,), ``b`` (..., K, N) or (K,); batch extents broadcast, with any strides: views such as
    attention's (B, S, H, D) transposed to (B, H, S, D) are read where they are. Operands are PyTorch tensors or
    anything with ``__dlpack__`` or ``__cuda_array_interface__``, all on one GPU, read in place: majorness follows from
    the strides. What is not aligned to 16 bytes may be copied first, into memory that the stream keeps, where that is
    faster. ``c`` broadcasts over the batch and may be ``out``; otherwise ``out`` must overlap no operand. ``beta`` is 1
    where ``c`` is given. With ``beta=0`` the values of ``c`` are not read; with ``alpha=0`` those of ``a`` and ``b``.

    ``out`` is allocated by PyTorch or CuPy where ``a`` is theirs, in ``out_dtype`` (default: that of the wider of
    ``a`` and ``b``; bf16 for fp8, s32 for 8-bit integers). ``accumulator`` is f32 by default, s32 for integers, f64
    for f64. f32 operands are multiplied as f32, or with ``tf32`` in the 10 bits of mantissa that tensor cores read.
    fp8 sums stay in the tensor cores, which keep about 13 bits, or without ``fast_accumulation`` move to f32 registers
    every 128 products.

    ``a_scale`` and ``b_scale``, either or both, multiply the sums as part of the epilogue: a number, a tensor of one
    element, (..., M, 1) with one for each row of ``a``, (..., 1, N) or (N,) with one for each column of ``b``, or (...,
    1, 1) with one for each matrix; each is f32, bf16, f16 or ue8m0. An expression may say where they stand, as in ``"d
    = relu(acc * b_scale[n]) * a_scale[m]"``; else each of its sums is multiplied. Of fp8 operands they may both be of
    blocks of 1 x 128 and 128 x 128 (DeepSeek-V3): (..., M, K/128) and (..., K/128, N/128), rounded up, both f32 or both
    ue8m0; accumulation is then always two-level. Any strides will do; scales of blocks are read fastest where they are
    contiguous along M.

    One operand may be narrower (s8, u8, e4m3, e5m2, s4, u4) than the other's bf16 or f16: weights, K-major, are
    upconverted in registers. ``b_dtype`` says what a tensor of bytes holds: 4-bit elements lie two in a byte along K,
    the even one in the low half, so that ``b`` is the transpose of (..., N, K/2). ``b_scale`` (..., K/group, N) and
    ``b_zero``, in the dtype of ``a`` and contiguous along N, make of them (b - zero) * scale, rounded to that dtype
    after each step; the group is 128, 64 or 32, whichever K/group, rounded up, tells. ``a_dtype``, ``a_scale`` (...,
    M, K/group; contiguous along M) and ``a_zero`` do the same for a narrow ``a``.

    ``epilogue`` says what is stored instead, as in ``"d = gelu(alpha * acc + bias[n])"``, and its operands and outputs
    follow by name: ``bias=``. ``x[m]`` is a vector (M,) or (..., M), ``x[n]`` (N,) or (..., N), ``x[batch]`` (...),
    ``x[m, n]`` broadcasts to D, ``x`` is a number or a tensor of one element; each is f32, bf16, f16 or ue8m0, of any
    strides. Tensors of outputs are given too, and hold the results afterwards. With ``gate`` and ``up``, the sums of
    columns 2 j and 2 j + 1 of B, D has N / 2 columns. See docs/epilogues.md.

    ``kernel`` names one kernel instead of selecting one from ``registry`` (default: the shipped kernel sets). Either
    may run the transposed problem, D^T = B^T A^T, on the same memory. Of a split-K kernel ``slices`` says in how many
    slices of K the launch goes, 1 to 256; by default as many as the model has as the fastest.
    ``sm_count`` bounds the SMs that the launch uses, so that kernels beside it, of communication say, have the others.

    ``deterministic`` refuses what could give other bits when the same call runs again on the same GPU: sums in an
    epilogue. ``batch_invariant`` promises besides that the bits of a row of ``out`` depend neither on how many rows nor
    on how many matrices there are: one kernel serves every M, a compromise (docs/kernels.md). ``a`` must be contiguous
    along K, ``c`` and ``out`` along N, and they must be aligned as packed rows are. ``autotune`` times the best so many
    kernels on these operands, once for a problem and GPU, and keeps the fastest in the registry's store; D and other
    outputs are written elsewhere meanwhile. ``objective`` says what the kernel is to be the fastest in: a program that
    runs for seconds, which the power limit may hold, or, ``"burst"``, a lone launch at full clock
    (docs/performance/sustained.md). ``quick`` has no effect any more: every choice is as quick.

    ``explain`` prints the problem, its kernel and why that was selected, each time. Where an operand's dtype, layout or
    alignment makes a call much slower than one like it, that says what it costs and what to change; so do
    ``plan(...).choice.why`` and, once a process for each kind of reason, a SlowPathWarning when a call is made ready.

    Work goes to ``stream``, by default PyTorch's current stream on the GPU of ``a``, or the legacy default stream where
    ``a`` is no PyTorch tensor. Where PyTorch is to record gradients, to cast, to transform or to watch the call, it
    goes by the operators of docs/torch.md, which take no ``stream`` and no ``registry``.

    Raises OperandError for operands that do not fit, KeywordError for keywords that neither it nor the epilogue has,
    UnsupportedProblemError where no kernel serves the problem, ConfigError where ``kernel`` names none, CompileError,
    ToolchainError or PackError where it cannot be built or read, DeviceError where the GPU cannot run it, CaptureError
    where the kernel is not loaded yet, or kernels are to be timed, and the stream is being captured.
    """


def _planning(declaration: Declaration) -> Callable[..., Plan]:
    def planned(a: Any, b: Any, **arguments: Any) -> Plan:
        arguments |= {"a": a, "b": b}
        refuse_dispatched("plan", arguments)
        call = declaration.read(arguments)
        return Plan(call, prepare(call), stream_to_follow(call, arguments.get("stream")))

    return planned


@declares(_planning)
def plan(  # type: ignore[empty-body]
    a: Tensor, b: Tensor, *, out: Tensor | None = None, c: Tensor | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None,
    accumulator: DTypeName | None = None, tf32: bool = False, fast_accumulation: bool = True,
    a_scale: Tensor | float | None = None, b_scale: Tensor | float | None = None,
    a_zero: Tensor | None = None, b_zero: Tensor | None = None, a_dtype: object = None, b_dtype: object = None,
    offsets: Tensor | None = None, counts: Tensor | None = None, expected_rows: int | None = None,
    addresses: Tensor | None = None,
    stream: Stream | None = None, registry: Registry | None = None,
    kernel: str | GemmConfig | None = None, slices: int | None = None, sm_count: int | None = None,
    deterministic: bool = False, batch_invariant: bool = False, autotune: int | None = None, quick: bool = False,
    objective: Regime = "sustained", explain: bool = False,
    epilogue: str | None = None, **operands: Tensor | float,
) -> Plan:
    """Everything that :func:`matmul` does short of the launch, done once; ``plan()`` then launches.

    Takes and raises what :func:`matmul` does, with ``offsets`` or ``counts`` what :func:`gemmill.grouped_matmul` does,
    with ``addresses`` what :func:`gemmill.array_matmul` does. Without ``stream``, each launch goes to the stream that
    is PyTorch's current one by then, or to the legacy default stream where ``a`` is not PyTorch's.

    A plan launches and does nothing else: it multiplies in the types of its operands under ``torch.autocast`` too, and
    OperandError refuses operands that require gradients while these are recorded, or that a transform, a mode or a
    subclass of PyTorch is to see.
    """
