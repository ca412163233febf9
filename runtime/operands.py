"""Tensors bound to the operands of one GEMM, by the conventions of ``torch.matmul``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.tensors import TensorView

MAX_EXTENT = (1 << 31) - 4096
"""Largest extent: kernels count in int32, and round up to whole clusters of tiles."""
SCALE_BLOCK = 128
"""Elements along K, and columns of B, that share a scale."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A, B, C or D in memory: matrices with one contiguous extent, one stride, one batch stride."""

    ptr: int
    """Address of the first element."""
    dtype: DTypeName
    major: str
    """The contiguous extent, as configs name it: ``k`` or ``mn`` for A and B, ``n`` or ``m`` for C and D."""
    stride: int
    """Elements between neighbours along the other extent; without meaning where that extent is 0 or 1."""
    batch_stride: int
    """Elements between matrices; 0 where all of the batch share one."""
    align: int
    """Largest power of two up to 16 that divides address and strides in bytes."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Block scales of A or B in memory: f32; strides in elements."""

    ptr: int
    """Address of the first scale."""
    stride: int
    """From a row of A, or a block of columns of B, to the next."""
    k_stride: int
    """From a block of K to the next."""
    batch_stride: int
    """From a matrix to the next; 0 where all of the batch share their scales."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A problem and the tensors it is solved on."""

    problem: GemmProblem
    a: Operand
    b: Operand
    c: Operand | None
    d: Operand
    a_scale: Scale | None = None
    b_scale: Scale | None = None


@dataclass(frozen=True, slots=True)
class Matrices:
    """A tensor as a batch of matrices, rows x columns; strides in elements."""

    name: str
    tensor: TensorView
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    batch_stride: int = 0


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of ``a @ b``: vectors lose their extent, batch extents broadcast; OperandError where they do not fit."""
    if not a or not b:
        raise OperandError(f"a has shape {a} and b {b}; matmul takes no scalars: multiply with alpha")
    inner = b[-2] if len(b) > 1 else b[-1]
    if a[-1] != inner:
        raise OperandError(f"a {a} @ b {b}: a has K = {a[-1]} columns, b has K = {inner} rows; they must be equal")
    longest = max(len(a), len(b)) - 2
    batch = []
    for axis in range(longest, 0, -1):
        extents = {shape[-2 - axis] for shape in (a, b) if len(shape) - 2 >= axis} - {1}
        if len(extents) > 1:
            raise OperandError(f"a {a} @ b {b}: batch extents {sorted(extents)} do not broadcast")
        batch.append(extents.pop() if extents else 1)
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def d_shape(a: tuple[int, ...], b: tuple[int, ...], epilogue: Epilogue) -> tuple[int, ...]:
    """Shape of D: that of ``a @ b``, with half its columns where the epilogue is gated."""
    shape = matmul_shape(a, b)
    if not epilogue.gated:
        return shape
    if len(b) < 2 or b[-1] % 2:
        columns = b[-1] if len(b) > 1 else 1
        raise OperandError(f"b {b} has N = {columns}; a gated epilogue makes one column of two, so N must be even")
    return (*shape[:-1], shape[-1] // 2)


def bind(
    a: TensorView,
    b: TensorView,
    d: TensorView,
    c: TensorView | None,
    accumulator: DTypeName,
    *,
    tf32: bool = False,
    promote: Literal[0, 4] = 0,
    a_scale: TensorView | None = None,
    b_scale: TensorView | None = None,
    epilogue: Epilogue = PLAIN,
    may_stack: bool = True,
) -> Gemm:
    """The GEMM that writes ``alpha * a @ b + beta * c``, or what ``epilogue`` makes of the sums, to ``d``.

    ``a`` is (..., M, K) or (K,), ``b`` (..., K, N) or (K,), ``d`` as :func:`matmul_shape` says, ``c`` broadcasts to
    ``d``; scales are as :func:`gemmill.matmul` takes them. Batch extents must collapse to one stride. With
    ``may_stack`` a batch that shares ``b`` may become one matrix. OperandError names the operand and the way out.
    """
    for name, tensor in (("b", b), ("c", c), ("out", d), ("a_scale", a_scale), ("b_scale", b_scale)):
        if tensor is not None and tensor.device != a.device:
            raise OperandError(f"{name} is on GPU {tensor.device} and a on GPU {a.device}; all must be on one")
    shape = d_shape(a.shape, b.shape, epilogue)
    if d.shape != shape:
        raise OperandError(f"out has shape {d.shape}; a {a.shape} @ b {b.shape} has {shape}")
    if not d.writable:
        raise OperandError("out is read-only")
    row_axis, column_axis = len(a.shape) > 1, len(b.shape) > 1
    m, k = (a.shape[-2] if row_axis else 1), a.shape[-1]
    n = b.shape[-1] if column_axis else 1
    d_columns = n // 2 if epilogue.gated else n
    batch_shape = shape[: len(shape) - row_axis - column_axis]
    batch = 1
    for extent in batch_shape:
        batch *= extent
    for name, value in (("M", m), ("N", n), ("K", k), ("batch", batch)):
        if value > MAX_EXTENT:
            raise OperandError(f"{name} is {value}; kernels count up to {MAX_EXTENT}: split the problem")

    matrices_a = matrices_of("a", a, batch_shape, m, k, row_axis, True)
    matrices_b = matrices_of("b", b, batch_shape, k, n, True, column_axis)
    matrices_d = matrices_of("out", d, batch_shape, m, d_columns, row_axis, column_axis)
    matrices_c = None
    if c is not None:
        spread = replace(c, shape=shape, strides=broadcast("c", c, shape))
        matrices_c = matrices_of("c", spread, batch_shape, m, d_columns, row_axis, column_axis)

    scale_a = scale_b = None
    if a_scale is not None and b_scale is not None:
        blocks = -(-k // SCALE_BLOCK)
        scale_a = _scale("a_scale", a_scale, batch_shape, (m, blocks), k_axis=1)
        scale_b = _scale("b_scale", b_scale, batch_shape, (blocks, -(-n // SCALE_BLOCK)), k_axis=0)
    elif a_scale is not b_scale:
        given, wanting = ("b", "a") if a_scale is None else ("a", "b")
        raise OperandError(f"{given} has scales and {wanting} has none; pass {wanting}_scale as well")
    scaled = scale_a is not None

    stacked = [x for x in (matrices_a, matrices_d, matrices_c) if x is not None]
    stackable = may_stack and 1 < batch <= MAX_EXTENT // max(m, 1) and matrices_b.batch_stride == 0 and not scaled
    if stackable and all(_stacks(x) for x in stacked):
        # One B for all: the batch is more rows of A, C and D.
        m, batch = m * batch, 1
        matrices_a, matrices_d = _stack(matrices_a, m), _stack(matrices_d, m)
        matrices_c = _stack(matrices_c, m) if matrices_c is not None else None

    operand_d = _operand(matrices_d, batch, "n", "m", first="n")
    operand_a = _operand(matrices_a, batch, "k", "mn", first="k")
    operand_b = _operand(matrices_b, batch, "mn", "k", first="k")
    operand_c = _operand(matrices_c, batch, "n", "m", first=operand_d.major) if matrices_c else None
    _refuse_overlap(matrices_d, operand_d, batch)
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a_dtype=_multiplied(a.dtype, tf32),
        a_major=_literal(operand_a.major),
        b_dtype=_multiplied(b.dtype, tf32),
        b_major=_literal(operand_b.major),
        accumulator=accumulator,
        d_dtype=d.dtype,
        d_major=_literal(operand_d.major),
        c_dtype=operand_c.dtype if operand_c else None,
        c_major=_literal(operand_c.major) if operand_c else None,
        a_align=operand_a.align,
        b_align=operand_b.align,
        c_align=operand_c.align if operand_c else 16,
        d_align=operand_d.align,
        a_scale="1x128" if scaled else "none",
        b_scale="128x128" if scaled else "none",
        promote=4 if scaled else promote,
        epilogue=spelling(epilogue),
    )
    return Gemm(problem, operand_a, operand_b, operand_c, operand_d, scale_a, scale_b)


def _multiplied(dtype: DTypeName, tf32: bool) -> DTypeName:
    """What the tensor cores take a tensor for."""
    return "tf32" if tf32 and dtype == "f32" else dtype


def _scale(name: str, tensor: TensorView, batch: tuple[int, ...], shape: tuple[int, int], k_axis: int) -> Scale:
    """Read the scales of blocks; ``shape`` is what the last two extents must be."""
    if tensor.dtype != "f32":
        raise OperandError(f"{name} is {tensor.dtype}; scales are f32: pass {name}.float()")
    if tensor.shape[-2:] != shape:
        raise OperandError(f"{name} has shape {tensor.shape}; its last extents must be {shape}, one for each block")
    outer = replace(tensor, shape=tensor.shape[:-2], strides=tensor.strides[:-2])
    batch_stride = collapse(name, batch, broadcast(name, outer, batch))
    strides = tensor.strides[-2:]
    return Scale(tensor.ptr, strides[1 - k_axis], strides[k_axis], batch_stride)


def _literal(major: str) -> Any:
    """A major as the literal type that the problem declares."""
    return major


def broadcast(name: str, tensor: TensorView, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor expanded to a shape: 0 along the extents it lacks."""
    missing = len(shape) - len(tensor.shape)
    if missing < 0 or any(e not in (1, f) for e, f in zip(tensor.shape, shape[missing:], strict=True)):
        raise OperandError(f"{name} has shape {tensor.shape}, which does not broadcast to {shape}")
    steps = zip(tensor.shape, shape[missing:], tensor.strides, strict=True)
    return (0,) * missing + tuple(0 if e != f else step for e, f, step in steps)


def matrices_of(
    name: str, tensor: TensorView, batch: tuple[int, ...], rows: int, columns: int, row_axis: bool, column_axis: bool
) -> Matrices:
    """Read a tensor as matrices; the flags say which matrix axes it has."""
    axes = row_axis + column_axis
    outer = len(tensor.shape) - axes
    shape = tensor.shape[:outer]
    matrix_strides = tensor.strides[outer:]
    spread = broadcast(name, replace(tensor, shape=shape, strides=tensor.strides[:outer]), batch)
    return Matrices(
        name,
        tensor,
        rows,
        columns,
        row_stride=matrix_strides[0] if row_axis else 0,
        column_stride=matrix_strides[-1] if column_axis else 0,
        batch_stride=collapse(name, batch, spread),
    )


def collapse(name: str, shape: Sequence[int], strides: Sequence[int]) -> int:
    """The one stride of several batch extents."""
    count, stride = 1, 0
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if count == 1:
            count, stride = extent, step
        elif step == count * stride or 0 in shape:
            count *= extent
        else:
            raise OperandError(
                f"{name}: batch extents {tuple(shape)} with strides {tuple(strides)} (0: broadcast) do not "
                f"collapse to one stride: pass {name}.expand(...).contiguous(), or loop over the outer extents"
            )
    return stride


def _stacks(matrices: Matrices) -> bool:
    """Whether the rows of the whole batch lie at one stride, and along one of the extents contiguously."""
    x = matrices
    if x.rows > 1:
        return x.batch_stride != 0 and x.batch_stride == x.rows * x.row_stride
    return x.batch_stride == 1 or (x.batch_stride != 0 and (x.columns == 1 or x.column_stride == 1))


def _stack(matrices: Matrices, rows: int) -> Matrices:
    """The whole batch as one matrix."""
    step = matrices.batch_stride if matrices.rows == 1 else matrices.row_stride
    return replace(matrices, rows=rows, row_stride=step, batch_stride=0)


def _operand(x: Matrices, batch: int, columns_contiguous: str, rows_contiguous: str, first: str) -> Operand:
    """Decide which extent is contiguous: where both could be, the better aligned, and on a tie ``first``."""
    tensor, size = x.tensor, DTYPES[x.tensor.dtype].bytes
    if 0 in (x.rows, x.columns, batch):
        # Nothing will be read; kernels run no K tile, or do not run.
        return Operand(tensor.ptr, tensor.dtype, first, 16 // size, 0, 16)
    batch_stride = x.batch_stride if batch > 1 else 0
    layouts = []
    for major, inner, inner_stride, outer, stride in (
        (columns_contiguous, x.columns, x.column_stride, x.rows, x.row_stride),
        (rows_contiguous, x.rows, x.row_stride, x.columns, x.column_stride),
    ):
        if inner == 1 or inner_stride == 1:
            bits = tensor.ptr | batch_stride * size | (stride * size if outer > 1 else 0) | 16
            layouts.append(Operand(tensor.ptr, tensor.dtype, major, stride, batch_stride, bits & -bits))
    if not layouts:
        raise OperandError(
            f"{x.name} has strides ({x.row_stride}, {x.column_stride}) along its rows and columns; one of them must be "
            f"1: pass {x.name}.contiguous()"
        )
    return max(layouts, key=lambda layout: (layout.align, layout.major == first))


def _refuse_overlap(x: Matrices, d: Operand, batch: int) -> None:
    """Elements of D that share an address would be written by several blocks."""
    inner, outer = (x.columns, x.rows) if d.major == "n" else (x.rows, x.columns)
    if 0 in (inner, outer, batch):
        return
    if (outer > 1 and abs(d.stride) < inner) or (batch > 1 and d.batch_stride == 0):
        raise OperandError(f"out has strides {x.tensor.strides} for shape {x.tensor.shape}: its elements overlap")
