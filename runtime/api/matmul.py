"""``gemmill.matmul`` and ``gemmill.plan``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import KeywordError, OperandError
from gemmill.library.problem import Regime
from gemmill.runtime.api.fast_path import launching
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import Declaration, declares
from gemmill.runtime.api.streams import Stream, stream_to_follow
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.operands.tensors import PreparedOperand, Tensor
from gemmill.runtime.registry import Registry
from gemmill.runtime.torch_dispatch import refuse_dispatched

# Keywords of one subject share a line.
# fmt: off


@declares(launching)
def matmul(
    a: Tensor, b: Tensor | PreparedOperand, *, out: Tensor | None = None, c: Tensor | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None,
    accumulator: DTypeName | None = None, tf32: bool = False, precision: str = "ieee",
    fast_accumulation: bool = True, symmetric: bool = False,
    a_scale: Tensor | float | None = None, b_scale: Tensor | float | None = None,
    a_zero: Tensor | None = None, b_zero: Tensor | None = None, a_dtype: object = None, b_dtype: object = None,
    stream: Stream | None = None, registry: Registry | None = None,
    kernel: str | GemmConfig | None = None, slices: int | None = None, sm_count: int | None = None,
    deterministic: bool = False, bits: str = "any", batch_invariant: bool = False, autotune: int | None = None,
    quick: bool = False, objective: Regime = "sustained", explain: bool = False,
    epilogue: str | None = None, **operands: Tensor | float,
) -> Any:
    """Compute ``alpha * a @ b + beta * c`` on the GPU, in the conventions of ``torch.matmul``, and return ``out``.

    Operands are PyTorch tensors, or objects with ``__dlpack__`` or ``__cuda_array_interface__``, all on one GPU.
    gemmill reads them in place with any strides, for example attention's (B, S, H, D) viewed as (B, H, S, D), and
    derives the majorness of each operand from them. Where it is faster, gemmill first copies an operand that is not
    aligned to 16 bytes into a workspace of the stream. ``a``, ``b``, ``c`` and ``out`` may all be complex64, which is
    multiplied as f32 is, or complex128, without an epilogue, scales and groups; ``a`` and ``b`` may be views of
    conjugates.

    Example:
        >>> d = gemmill.matmul(a, b)
        >>> d = gemmill.matmul(a, b, c=c, beta=0.5, out_dtype="f32")
        >>> d = gemmill.matmul(a, b, epilogue="d = silu(acc + bias[n])", bias=bias)
        >>> d = gemmill.matmul(a8, b8, a_scale=row_scales, b_scale=column_scales)
        >>> d = gemmill.matmul(a, w4.T, b_dtype="u4", b_scale=scales, b_zero=zeros)

    Args:
        a: A, (..., M, K) or (K,). Batch extents of ``a`` and ``b`` broadcast.
        b: B, (..., K, N) or (K,).
        out: D, the tensor to write; it must not overlap an operand other than ``c``. By default PyTorch or CuPy
            allocates it, where ``a`` is one of their tensors.
        c: C, which broadcasts to D; it may be ``out``.
        alpha: Factor of the product. With 0, kernels do not read ``a`` and ``b``.
        beta: Factor of C; 1 by default where ``c`` is passed. With 0, kernels do not read ``c``.
        out_dtype: Dtype of a D that gemmill allocates. Default: the dtype of the wider of ``a`` and ``b``; bf16 for
            fp8, s32 for 8-bit integers.
        accumulator: Dtype of the sums. Default: f32; s32 for integers, f64 for f64.
        tf32: A shorter way to write ``precision="tf32"``.
        precision: How f32 operands are multiplied: ``"ieee"``, in f32, without tensor cores; ``"tf32"``, with 10 bits
            of mantissa, on tensor cores; or as sums of 9, 6 or 3 products of bf16 components (``"bf16x9"``,
            ``"bf16x6"``, ``"bf16x3"``), or of 3 of scaled f16 components (``"f16x3"``), into which a kernel splits the
            operands first (docs/float32.md). Operands of other types ignore it.
        fast_accumulation: Keep fp8 sums in the tensor cores, which have about 13 bits. False selects two-level
            accumulation: the sums move to f32 registers every 128 products.
        symmetric: The caller guarantees that D equals its transpose, as in ``matmul(x, x.mT, symmetric=True)``
            (:func:`syrk`). Where kernels for it are faster, they multiply half of the tiles, and store each tile below
            the diagonal twice.
        a_scale: Scale of A; see below.
        b_scale: Scale of B; see below.
        a_zero: Zero points of a narrow A; see below.
        b_zero: Zero points of a narrow B; see below.
        a_dtype: Dtype of the elements of ``a`` where it is a tensor of bytes.
        b_dtype: Dtype of the elements of ``b`` where it is a tensor of bytes.
        stream: Stream of the launch. Default: PyTorch's current stream on the GPU of ``a``, or the legacy default
            stream where ``a`` is not a PyTorch tensor.
        registry: Registry that kernels come from. Default: the shipped kernel sets.
        kernel: A kernel by name or config; by default the selector picks one. Either may run the transposed problem,
            D^T = B^T A^T, on the same memory.
        slices: Slices of K of a split-K ``kernel``, 1 to 256. By default the model picks the fastest number.
        sm_count: Most SMs that the launch uses, so that concurrent kernels, such as communication, can use the others.
        deterministic: Refuse operations whose bits can differ between runs of the same call on the same GPU, such as
            sums in an epilogue.
        bits: Which order of sums, and so which bits of ``out``, kernels must give (docs/kernels.md): ``"any"``, that of
            the fastest kernel; ``"invariant"``, one that depends on the dtypes, N, K and the epilogue, not on M or the
            batch; ``"cublas"``, that of cuBLAS without split-K; or the name of one, such as ``"k16"``.
        batch_invariant: Another name for ``bits="invariant"``.
        autotune: Time this many of the best-ranked kernels on these operands, once per problem and GPU, and keep the
            fastest in the registry's store. Outputs go to scratch memory while kernels are timed.
        quick: Deprecated, has no effect.
        objective: ``"sustained"`` picks the fastest kernel for programs that run for seconds, where the power limit may
            lower the clock; ``"burst"`` for short launches at full clock (docs/performance/sustained.md).
        explain: Print the problem, its kernel and the reason of the choice, at each call.
        epilogue: Expression for D and other outputs; see below.
        **operands: Operands and outputs of the epilogue, by name.

    Scales: each is f32, bf16, f16 or ue8m0, with any strides.

    - Of an operand, its rows or columns: ``a_scale`` and ``b_scale``, either or both, multiply the sums. Each is a
      number, a tensor of one element, (..., M, 1) for the rows of ``a``, (..., 1, N) or (N,) for the columns of ``b``,
      or (..., 1, 1) for each matrix. An expression may use them by name, as in ``"d = relu(acc * b_scale[n]) *
      a_scale[m]"``; otherwise every sum is multiplied.
    - Of blocks (fp8 only, as in DeepSeek-V3): ``a_scale`` is (..., M, K/128) and ``b_scale`` is (..., K/128, N/128),
      rounded up, both f32 or both ue8m0. Accumulation is always two-level. Kernels read ``a_scale`` fastest where it is
      contiguous along M.
    - Of groups along K, for weight-only quantization: one operand may be narrower (s8, u8, e4m3, e5m2, s4, u4) than the
      other's bf16 or f16. It must be K-major; kernels upconvert it in registers. ``b_dtype`` names the elements of a
      tensor of bytes: two 4-bit elements share a byte along K, the even one in the low half, so ``b`` is the transpose
      of (..., N, K/2). ``b_scale`` (..., K/group, N) and ``b_zero`` have the dtype of ``a`` and are contiguous along N;
      the operand becomes (b - zero) * scale, rounded to that dtype after each step. The group is 128, 64 or 32, as
      follows from K/group, rounded up. ``a_dtype``, ``a_scale`` (..., M, K/group; contiguous along M) and ``a_zero`` do
      the same for a narrow ``a``.
    - Of s4 weights beside e4m3 activations: ``b_scale`` (..., K/128, N) is f32, contiguous along N, and multiplies the
      sums of each 128 along K. There are no zero points; ``a_scale`` may scale rows.
    - Of e2m1 weights (MXFP4), which are narrow too: ``b_scale`` (..., K/32, N) is ue8m0, at most 2 (in f16 at least
      2^-23), and the bytes are in the order of ``gemmill.torch.mxfp4``.

    Epilogues: ``epilogue`` is an expression such as ``"d = gelu(alpha * acc + bias[n])"``, and you pass ``bias=``.
    ``x[m]`` is (M,) or (..., M), ``x[n]`` is (N,) or (..., N), ``x[batch]`` is (...), ``x[m, n]`` broadcasts to D, and
    ``x`` is a number or a tensor of one element. Each has any dtype that D may have, or is ue8m0, with any strides. You
    pass the tensors of further outputs too; the kernel writes them. With ``gate`` and ``up``, the sums of columns 2 j
    and 2 j + 1 of B, D has N / 2 columns. See docs/epilogues.md.

    Slow paths: where the dtype, layout or alignment of an operand makes a call much slower than a similar one,
    ``explain`` and ``plan(...).choice.why`` report the predicted cost and what to change. The first call of each kind
    in a process also gives a SlowPathWarning.

    PyTorch: where PyTorch must record gradients, cast, transform or observe the call, gemmill runs it as one of the
    operators in docs/torch.md, which take no ``stream`` and no ``registry``.

    Returns:
        ``out``.

    Raises:
        OperandError: the operands or options do not fit.
        KeywordError: a keyword belongs neither to this function nor to the epilogue.
        UnsupportedProblemError: no kernel supports the problem.
        ConfigError: ``kernel`` is not the name of a kernel.
        CompileError, ToolchainError, PackError: the kernel cannot be compiled or read.
        DeviceError: the GPU cannot run the kernel.
        CaptureError: the stream is being captured into a CUDA graph, and the kernel is not loaded yet or kernels must
            be timed.
    """


def syrk(x: Tensor, **options: Any) -> Any:
    """Compute ``alpha * x @ x.mT + beta * c`` for a symmetric ``c``, and return ``out``.

    Kernels for 16-bit types multiply only the tiles that meet the lower triangle, and store each tile below the
    diagonal twice, so that the halves of D are equal to the last bit: see docs/symmetric.md. Where another kernel is
    chosen, as for other types and few rows, the halves may differ by rounding.

    It is :func:`matmul` with ``symmetric=True``, which also takes other products that are symmetric, such as those of
    polynomials of one symmetric matrix.

    Example:
        >>> a = gemmill.syrk(x)
        >>> b = gemmill.syrk(a, c=a, alpha=2.0315, beta=-4.775)  # -4.775 A + 2.0315 A A for a symmetric A

    Args:
        x: X, (..., M, K): a PyTorch tensor, or an array with ``mT`` or ``swapaxes``.
        **options: Keywords of :func:`matmul`: ``c``, symmetric, which broadcasts to (..., M, M) and may be ``out``;
            ``alpha``, ``beta``, ``out``, ``out_dtype`` and others.

    Raises:
        OperandError: ``x`` is not a matrix or a batch of matrices.
        KeywordError: ``a``, ``b`` or ``symmetric`` is passed.
        GemmillError: as for :func:`matmul`.
    """
    array: Any = x
    for name in ("a", "b", "symmetric"):
        if name in options:
            raise KeywordError(
                f"unexpected argument {name!r}; syrk multiplies x by x.mT. For other symmetric products, call "
                "matmul(a, b, symmetric=True)"
            )
    if getattr(array, "ndim", 0) < 2:
        found = f"has shape {tuple(array.shape)}" if hasattr(array, "ndim") else f"is a {type(array).__qualname__}"
        raise OperandError(
            f"x {found}; it must be a tensor or an array of shape (..., M, K). Of other objects, pass both operands: "
            "matmul(a, b, symmetric=True)"
        )
    transposed = array.mT if hasattr(array, "mT") else array.swapaxes(-1, -2)  # CuPy
    return matmul(x, transposed, symmetric=True, **options)


def _planning(declaration: Declaration) -> Callable[..., Plan]:
    def planned(a: Any, b: Any, **arguments: Any) -> Plan:
        arguments |= {"a": a, "b": b}
        refuse_dispatched("plan", arguments)
        call = declaration.read(arguments)
        return Plan(call, prepare(call), stream_to_follow(call.tensors["a"], call.stream, arguments.get("stream")))

    return planned


@declares(_planning)
def plan(  # type: ignore[empty-body]
    a: Tensor, b: Tensor | PreparedOperand, *, out: Tensor | None = None, c: Tensor | None = None,
    alpha: float = 1.0, beta: float | None = None, out_dtype: object = None,
    accumulator: DTypeName | None = None, tf32: bool = False, precision: str = "ieee",
    fast_accumulation: bool = True, symmetric: bool = False,
    a_scale: Tensor | float | None = None, b_scale: Tensor | float | None = None,
    a_zero: Tensor | None = None, b_zero: Tensor | None = None, a_dtype: object = None, b_dtype: object = None,
    offsets: Tensor | None = None, counts: Tensor | None = None, rows: Tensor | None = None,
    expected_rows: int | None = None, addresses: Tensor | None = None,
    stream: Stream | None = None, registry: Registry | None = None,
    kernel: str | GemmConfig | None = None, slices: int | None = None, sm_count: int | None = None,
    deterministic: bool = False, bits: str = "any", batch_invariant: bool = False, autotune: int | None = None,
    quick: bool = False, objective: Regime = "sustained", explain: bool = False,
    epilogue: str | None = None, **operands: Tensor | float,
) -> Plan:
    """Prepare a call: select, compile and load its kernel once. The returned plan only launches: ``plan()``.

    It takes the keywords of :func:`matmul`; ``offsets``, ``counts``, ``rows`` and ``expected_rows`` as in
    :func:`gemmill.grouped_matmul`; and ``addresses`` as in :func:`gemmill.array_matmul`. Without ``stream``, each
    launch uses the PyTorch stream that is current at that time, or the legacy default stream where ``a`` is not a
    PyTorch tensor.

    A plan ignores ``torch.autocast``: it multiplies in the dtypes of its operands. It records no gradients.

    Example:
        >>> plan = gemmill.plan(a, b, out=d)
        >>> plan()  # launches
        >>> plan.rebind(a=a2)  # another tensor of the same shape, for the next launches
        >>> print(plan.choice.why)

    Raises:
        OperandError: also where gradients of an operand must be recorded, or where a transform, mode or subclass of
            PyTorch must see the call.
        GemmillError: any other error of :func:`matmul`.
    """
