"""Tensors bound to the operands of one GEMM, by the conventions of ``torch.matmul``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from gemmill.library.arch import TMA_MAX_STRIDE
from gemmill.library.config.model import BatchingName
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.problem import MAX_EXTENT, GemmProblem, is_mixed, widens_a
from gemmill.runtime.operands.tensors import TensorView

GROUPS = (128, 64, 32)
"""Elements of a narrow operand along K that may share a scale."""
SCALE_BLOCK = 128
"""Elements along K, and columns of B, that share a scale."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A, B, C or D in memory: matrices at one batch stride."""

    ptr: int
    """Address of the first element."""
    dtype: DTypeName
    major: str
    """The contiguous extent, as configs name it: ``k`` or ``mn`` for A and B, ``n`` or ``m`` for C and D. ``any``:
    there is none, or neighbours along the other extent are not a positive number of elements apart."""
    stride: int
    """Elements between neighbours along the other extent; without meaning where it is 0 or 1, or for ``any``."""
    batch_stride: int
    """Elements between matrices; 0 where all of the batch share one."""
    align: int
    """Largest power of two up to 16 that divides address and strides in bytes."""
    row_stride: int = 0
    """Elements between neighbouring rows (A is M x K, B K x N, C and D M x N); 0 where there is but one."""
    column_stride: int = 0
    """Elements between neighbouring columns; 0 where there is but one."""


class Scale(NamedTuple):
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
    """A problem and the tensors it is solved on. Kernels widen A alone: of a narrow B the transpose is computed."""

    problem: GemmProblem
    a: Operand
    b: Operand
    c: Operand | None
    d: Operand
    a_scale: Scale | None = None
    b_scale: Scale | None = None
    scale: Operand | None = None
    """Scales of groups of narrow A: a matrix, M by K / group."""
    zero: Operand | None = None
    """Their zero points."""
    is_transposed: bool = False
    """Whether it computes the transpose of what the caller asked for: its A is the caller's b."""
    groups: int = 0
    """Address of the offsets or counts of groups or of the addresses of matrices; 0 for a strided batch."""

    def name(self, operand: str) -> str:
        """What the caller calls the operand in an attribute of this class."""
        narrow = "b" if self.is_transposed else "a"
        other = {"a": "b", "b": "a"} if self.is_transposed else {}
        return {"d": "out", "scale": f"{narrow}_scale", "zero": f"{narrow}_zero", **other}.get(operand, operand)

    @property
    def transposed(self) -> Gemm:
        """The same work as D^T = B^T A^T: see :attr:`GemmProblem.transposed`."""
        return replace(
            self,
            problem=self.problem.transposed,
            a=_transposed(self.b),
            b=_transposed(self.a),
            c=_transposed(self.c) if self.c else None,
            d=_transposed(self.d),
            is_transposed=not self.is_transposed,
        )


def _transposed(x: Operand) -> Operand:
    """An operand with its rows called columns. The majors of A and B are named relative to K, and stay."""
    major = {"n": "m", "m": "n"}.get(x.major, x.major)
    return replace(x, major=major, row_stride=x.column_stride, column_stride=x.row_stride)


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
    return halved(matmul_shape(a, b), b, epilogue)


def halved(shape: tuple[int, ...], b: tuple[int, ...], epilogue: Epilogue) -> tuple[int, ...]:
    """The shape of a product with half its columns where the epilogue is gated; OperandError where N is odd."""
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
    a_zero: TensorView | None = None,
    b_zero: TensorView | None = None,
    epilogue: Epilogue = PLAIN,
    may_stack: bool = True,
) -> Gemm:
    """The GEMM that writes ``alpha * a @ b + beta * c``, or what ``epilogue`` makes of the sums, to ``d``.

    ``a`` is (..., M, K) or (K,), ``b`` (..., K, N) or (K,), ``d`` as :func:`matmul_shape` says, ``c`` broadcasts to
    ``d``; scales are as :func:`gemmill.matmul` takes them. Batch extents must collapse to one stride. With
    ``may_stack`` a batch that shares ``b`` may become one matrix. OperandError names the operand and the way out.
    """
    others = {"b": b, "c": c, "out": d, "a_scale": a_scale, "b_scale": b_scale, "a_zero": a_zero, "b_zero": b_zero}
    check_devices(a, **others)
    shape = d_shape(a.shape, b.shape, epilogue)
    check_out(a, b, d, shape)
    row_axis, column_axis = len(a.shape) > 1, len(b.shape) > 1
    m, k = (a.shape[-2] if row_axis else 1), a.shape[-1]
    n = b.shape[-1] if column_axis else 1
    d_columns = n // 2 if epilogue.gated else n
    batch_shape = shape[: len(shape) - row_axis - column_axis]
    batch = 1
    for extent in batch_shape:
        batch *= extent
    matrices_a = matrices("a", a, batch_shape, m, k, row_axis, True)
    matrices_b = matrices("b", b, batch_shape, k, n, True, column_axis)
    matrices_d = matrices("out", d, batch_shape, m, d_columns, row_axis, column_axis)
    matrices_c = None
    if c is not None:
        matrices_c = matrices("c", spread(c, shape), batch_shape, m, d_columns, row_axis, column_axis)

    groups = scales = None
    if is_mixed(a.dtype, b.dtype):
        narrow = matrices_a if widens_a(a.dtype, b.dtype) else matrices_b
        groups = _groups(narrow, b if narrow is matrices_a else a, others, batch_shape)
    elif a_zero is not None or b_zero is not None:
        raise OperandError(f"zero points are for operands narrower than the other; a is {a.dtype} and b {b.dtype}")
    else:
        scales = block_scales(a_scale, b_scale, (m, n, k), batch_shape, batch_shape)

    stacked = [x for x in (matrices_a, matrices_d, matrices_c) if x is not None]
    stackable = may_stack and 1 < batch <= MAX_EXTENT // max(m, 1) and matrices_b.batch_stride == 0 and scales is None
    stackable = stackable and (groups is None or groups.name == "b")
    if stackable and all(_stacks(x) for x in stacked):
        # One B for all: the batch is more rows of A, C and D.
        m, batch = m * batch, 1
        matrices_a, matrices_d = _stack(matrices_a, m), _stack(matrices_d, m)
        matrices_c = _stack(matrices_c, m) if matrices_c is not None else None

    extents = m, n, k, batch
    abcd = matrices_a, matrices_b, matrices_c, matrices_d
    gemm = assemble(extents, *abcd, accumulator, tf32=tf32, promote=promote, scales=scales)
    if epilogue is not PLAIN:
        gemm = replace(gemm, problem=replace(gemm.problem, epilogue=spelling(epilogue)))
    if groups is None:
        return gemm
    if groups.name == "b":
        if epilogue.gated:
            raise OperandError(
                f"the epilogue `{epilogue}` pairs columns of b, and kernels that widen b compute the transpose: apply "
                "it to the result, or widen b beforehand"
            )
        gemm = gemm.transposed
    problem = replace(gemm.problem, a_scale=groups.scaling)
    return replace(gemm, problem=problem, scale=groups.scale, zero=groups.zero)


def block_scales(
    a_scale: TensorView | None,
    b_scale: TensorView | None,
    extents: tuple[int, int, int],
    batch_a: tuple[int, ...],
    batch_b: tuple[int, ...],
) -> tuple[Scale, Scale] | None:
    """Read the scales of A and B, or None where neither has any; ``extents`` are M, N and K."""
    m, n, k = extents
    if a_scale is not None and b_scale is not None:
        blocks = -(-k // SCALE_BLOCK)
        return (
            _scale("a_scale", a_scale, batch_a, (m, blocks), k_axis=1),
            _scale("b_scale", b_scale, batch_b, (blocks, -(-n // SCALE_BLOCK)), k_axis=0),
        )
    if a_scale is not b_scale:
        given, wanting = ("b", "a") if a_scale is None else ("a", "b")
        raise OperandError(f"{given} has scales and {wanting} has none; pass {wanting}_scale as well")
    return None


def check_devices(a: TensorView, **others: TensorView | None) -> None:
    """Refuse operands on several GPUs."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != a.device:
            raise OperandError(f"{name} is on GPU {tensor.device} and a on GPU {a.device}; all must be on one")


def check_out(a: TensorView, b: TensorView, d: TensorView, shape: tuple[int, ...]) -> None:
    """Refuse a D that cannot hold a product of this shape."""
    if d.shape != shape:
        raise OperandError(f"out has shape {d.shape}; a {a.shape} @ b {b.shape} has {shape}")
    if not d.writable:
        raise OperandError("out is read-only")


def spread(c: TensorView, shape: tuple[int, ...]) -> TensorView:
    """C, broadcast to a shape."""
    return replace(c, shape=shape, strides=broadcast("c", c, shape))


def assemble(
    extents: tuple[int, int, int, int],
    a: Matrices,
    b: Matrices,
    c: Matrices | None,
    d: Matrices,
    accumulator: DTypeName,
    *,
    tf32: bool = False,
    promote: Literal[0, 4] = 0,
    scales: tuple[Scale, Scale] | None = None,
    batching: BatchingName = "strided",
    groups: int = 0,
) -> Gemm:
    """The GEMM of matrices; ``extents`` are M, N, K and batch, as :class:`GemmProblem` has them."""
    m, n, k, batch = extents
    for name, value in (("M", m), ("N", n), ("K", k), ("batch", batch)):
        if value > MAX_EXTENT:
            raise OperandError(f"{name} is {value}; kernels count up to {MAX_EXTENT}: split the problem")
    operand_d = _operand(d, batch, "n", "m", first="n")
    first = "mn" if batching == "kgrouped" else "k"  # kernels with groups along K take no other
    operand_a = _operand(a, batch, "k", "mn", first)
    operand_b = _operand(b, batch, "mn", "k", first)
    operand_c = _operand(c, batch, "n", "m", first=operand_d.major) if c else None
    refuse_overlap(d, 1 if batching in ("grouped", "array") else batch)
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a_dtype=_multiplied(operand_a.dtype, tf32),
        a_major=_literal(operand_a.major),
        b_dtype=_multiplied(operand_b.dtype, tf32),
        b_major=_literal(operand_b.major),
        accumulator=accumulator,
        d_dtype=operand_d.dtype,
        d_major=_literal(operand_d.major),
        c_dtype=operand_c.dtype if operand_c else None,
        c_major=_literal(operand_c.major) if operand_c else None,
        a_align=operand_a.align,
        b_align=operand_b.align,
        c_align=operand_c.align if operand_c else 16,
        d_align=operand_d.align,
        a_scale="1x128" if scales else "none",
        b_scale="128x128" if scales else "none",
        promote=4 if scales else promote,
        batching=batching,
    )
    a_scale, b_scale = scales or (None, None)
    return Gemm(problem, operand_a, operand_b, operand_c, operand_d, a_scale, b_scale, groups=groups)


def unpacked(name: str, tensor: TensorView, dtype: DTypeName, k: int) -> TensorView:
    """``a`` or ``b`` in bytes as what those hold: ``dtype``, of 8 bits, or of 4 and then two a byte along K.

    ``k`` is the other operand's; where the last byte holds but one element, it decides.
    """
    bits = DTYPES[dtype].bits
    axis = -2 if name == "b" and len(tensor.shape) > 1 else -1
    if dtype == tensor.dtype or not tensor.shape:  # a scalar is refused later
        return tensor
    if bits > 8 or DTYPES[tensor.dtype].bits != 8:
        raise OperandError(f"{name} is {tensor.dtype}, and cannot be read as {dtype}: pass int8 or uint8 that hold it")
    if bits == 8:
        return replace(tensor, dtype=dtype)
    count = 2 * tensor.shape[axis]
    if k == count - 1:
        count = k
    if tensor.shape[axis] > 1 and tensor.strides[axis] != 1:
        raise OperandError(
            f"{name} has strides {tensor.strides}; two {dtype} lie in a byte along K, which must be contiguous: pack "
            "(N, K / 2) and pass its transpose"
        )
    shape, strides = list(tensor.shape), [2 * step for step in tensor.strides]
    shape[axis], strides[axis] = count, 1
    return replace(tensor, shape=tuple(shape), strides=tuple(strides), dtype=dtype)


class _Groups(NamedTuple):
    """Scales and zero points of groups of the narrow operand."""

    name: str
    scaling: Any
    scale: Operand | None = None
    zero: Operand | None = None


def _groups(
    narrow: Matrices, wide: TensorView, tensors: Mapping[str, TensorView | None], batch: tuple[int, ...]
) -> _Groups:
    """Read what scales the narrow operand."""
    name, other = (narrow.name, "b") if narrow.name == "a" else (narrow.name, "a")
    rows, k = (narrow.rows, narrow.columns) if name == "a" else (narrow.columns, narrow.rows)
    for kind in ("scale", "zero"):
        if tensors[f"{other}_{kind}"] is not None:
            raise OperandError(f"{other} is {wide.dtype}, the wider operand; only {name} takes a {kind}")
    scale, zero = tensors[f"{name}_scale"], tensors[f"{name}_zero"]
    if scale is None:
        if zero is not None:
            raise OperandError(f"{name}_zero is given without {name}_scale; pass both")
        return _Groups(name, "none")
    k_axis = -1 if name == "a" else -2
    count = scale.shape[k_axis] if len(scale.shape) > 1 else 0
    size = next((size for size in GROUPS if -(-k // size) == count), None)
    shape = (rows, count) if name == "a" else (count, rows)
    if size is None or scale.shape[-2:] != shape:
        wanted = " or ".join(str((rows, g) if name == "a" else (g, rows)) for g in (-(-k // size) for size in GROUPS))
        raise OperandError(
            f"{name}_scale has shape {scale.shape}; its last extents must be {wanted}: one for each "
            f"{'row' if name == 'a' else 'column'} and group of {', '.join(map(str, GROUPS))} along K = {k}"
        )
    operands: list[Operand | None] = []
    for kind, tensor in (("scale", scale), ("zero", zero)):
        if tensor is None:
            operands.append(None)
            continue
        if tensor.dtype != wide.dtype or tensor.shape != scale.shape:
            raise OperandError(
                f"{name}_{kind} is {tensor.dtype} {tensor.shape}; it must be {wide.dtype} {scale.shape}, as {other} is"
            )
        outer = replace(tensor, shape=tensor.shape[:-2], strides=tensor.strides[:-2])
        batch_stride = collapse(f"{name}_{kind}", batch, broadcast(f"{name}_{kind}", outer, batch))
        along_rows, along_k = tensor.strides[-2 if name == "a" else -1], tensor.strides[k_axis]
        if bool(batch_stride) != bool(narrow.batch_stride):
            raise OperandError(
                f"{name}_{kind} has shape {tensor.shape} and {name} {narrow.tensor.shape}; each matrix of a batch has "
                f"its own, and a shared matrix shares it: pass {name}_{kind}.expand(...).contiguous()"
            )
        if rows > 1 and along_rows != 1:
            raise OperandError(
                f"{name}_{kind} has strides {tensor.strides}; neighbours of one group must be contiguous, as in "
                f"{'(K / group, M).T' if name == 'a' else '(K / group, N)'}"
            )
        operands.append(Operand(tensor.ptr, tensor.dtype, "m", along_k, batch_stride, 16))
    return _Groups(name, f"1x{size}" + ("z" if zero else ""), *operands)


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


def matrices(
    name: str, tensor: TensorView, batch: tuple[int, ...], rows: int, columns: int, row_axis: bool, column_axis: bool
) -> Matrices:
    """Read a tensor as matrices; the flags say which matrix axes it has."""
    axes = row_axis + column_axis
    outer = len(tensor.shape) - axes
    shape = tensor.shape[:outer]
    matrix_strides = tensor.strides[outer:]
    outer_strides = broadcast(name, replace(tensor, shape=shape, strides=tensor.strides[:outer]), batch)
    return Matrices(
        name,
        tensor,
        rows,
        columns,
        row_stride=matrix_strides[0] if row_axis else 0,
        column_stride=matrix_strides[-1] if column_axis else 0,
        batch_stride=collapse(name, batch, outer_strides),
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
    tensor, bits = x.tensor, DTYPES[x.tensor.dtype].bits
    if 0 in (x.rows, x.columns, batch):
        # Nothing will be read; kernels run no K tile, or do not run.
        return Operand(tensor.ptr, tensor.dtype, first, 128 // bits, 0, 16)
    batch_stride = x.batch_stride if batch > 1 else 0
    steps = x.row_stride if x.rows > 1 else 0, x.column_stride if x.columns > 1 else 0

    def described(major: str, *strides: int) -> Operand:
        offsets = (step * bits // 8 for step in (*strides, batch_stride))
        aligned = functools.reduce(int.__or__, offsets, tensor.ptr | 16)
        stride = strides[0] if len(strides) == 1 else 0
        return Operand(tensor.ptr, tensor.dtype, major, stride, batch_stride, aligned & -aligned, *steps)

    layouts = []
    for major, inner, inner_stride, outer, stride in (
        (columns_contiguous, x.columns, x.column_stride, x.rows, x.row_stride),
        (rows_contiguous, x.rows, x.row_stride, x.columns, x.column_stride),
    ):
        # An operand with strides that are too long for TMA counts as one without a contiguous extent.
        longest = 8 * TMA_MAX_STRIDE
        regular = (outer == 1 or 0 < stride * bits < longest) and 0 <= batch_stride * bits < longest
        if (inner == 1 or inner_stride == 1) and regular:
            layouts.append(described(major, stride if outer > 1 else 0))
    if not layouts:
        return described("any", *steps)
    return max(layouts, key=lambda layout: (layout.align, layout.major == first))


def refuse_overlap(x: Matrices, batch: int) -> None:
    """Elements of D, or of another output, that share an address would be written by several blocks."""
    extents = ((x.rows, x.row_stride), (x.columns, x.column_stride), (batch, x.batch_stride))
    if 0 in (x.rows, x.columns, batch):
        return
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for extent, stride in extents if extent > 1):
        if stride <= reach:
            raise OperandError(
                f"{x.name} has strides {x.tensor.strides} for shape {x.tensor.shape}: its elements overlap"
            )
        reach += (extent - 1) * stride
