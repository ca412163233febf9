"""Strided tensors as batches of matrices, and these as A, B, C or D of a kernel: which extent is contiguous, how far
apart neighbours are, how well all of it is aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from gemmill.library.arch import TMA_MAX_STRIDE
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.problem import MAX_EXTENT
from gemmill.runtime.operands.tensors import TensorView


@dataclass(frozen=True, slots=True)
class Operand:
    """A, B, C or D in memory: matrices at one batch stride."""

    name: str
    """What the caller calls it."""
    ptr: int
    """Address of the first element."""
    dtype: DTypeName
    major: str
    """The contiguous extent, as configs name it: ``k`` or ``mn`` for A and B, ``n`` or ``m`` for C and D. ``any``:
    there is none, or neighbours along the other extent are not a positive number of elements apart."""
    stride: int
    """Elements between neighbours along the other extent; without meaning where it is 0 or 1, or for ``any``."""
    batch_stride: int
    """Elements between matrices; 0 where all of the batch share one. Of a nested batch what divides all its strides."""
    align: int
    """Largest power of two up to 16 that divides address and strides in bytes."""
    row_stride: int = 0
    """Elements between neighbouring rows (A is M x K, B K x N, C and D M x N); 0 where there is but one."""
    column_stride: int = 0
    """Elements between neighbouring columns; 0 where there is but one."""
    batch_steps: tuple[int, ...] = ()
    """Of a nested batch: how many times ``batch_stride`` lies between matrices along each of its extents."""

    def places(self, batch: int, nested: tuple[int, ...]) -> int:
        """How many places ``batch_stride`` apart the matrices of a batch take up, some of which may hold none."""
        if nested:
            return 1 + sum((extent - 1) * step for extent, step in zip(nested, self.batch_steps, strict=True))
        return batch if self.batch_stride else 1

    @property
    def transposed(self) -> Operand:
        """With its rows called columns. The majors of A and B are named relative to K, and stay."""
        major = {"n": "m", "m": "n"}.get(self.major, self.major)
        return replace(self, major=major, row_stride=self.column_stride, column_stride=self.row_stride)


@dataclass(frozen=True, slots=True)
class Matrices:
    """A tensor as a batch of matrices, rows x columns; strides in elements."""

    name: str
    tensor: TensorView
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    batch_strides: tuple[int, ...] = ()
    """Along the extents of the batch: one, or of a nested batch several."""

    @property
    def batch_stride(self) -> int:
        """Elements between matrices of a batch with one stride; 0 where they share one."""
        return self.batch_strides[0] if self.batch_strides else 0


FourMatrices = tuple[Matrices, Matrices, Matrices | None, Matrices]
"""A, B, C and D."""


def matrices(
    name: str, tensor: TensorView, batch: tuple[int, ...], rows: int, columns: int, row_axis: bool, column_axis: bool
) -> Matrices:
    """Read a tensor as matrices; the flags say which matrix axes it has."""
    axes = row_axis + column_axis
    outer = len(tensor.shape) - axes
    matrix_strides = tensor.strides[outer:]
    outer_strides = broadcast(name, tensor.shape[:outer], tensor.strides[:outer], batch)
    return Matrices(
        name,
        tensor,
        rows,
        columns,
        row_stride=matrix_strides[0] if row_axis else 0,
        column_stride=matrix_strides[-1] if column_axis else 0,
        batch_strides=outer_strides,
    )


def merge(batch: tuple[int, ...], operands: Sequence[Matrices | None]) -> tuple[tuple[int, ...], Any]:
    """The fewest extents that a batch has for all of some operands, and these with a stride along each."""
    if not batch:
        return batch, tuple(operands)
    extents, strides = _joined(batch, [x.batch_strides for x in operands if x is not None])
    merged = iter(strides)
    return extents, tuple(x and replace(x, batch_strides=next(merged)) for x in operands)


def one_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride at which elements along several extents follow one another; None where there is no one."""
    extents, (own,) = _joined(shape, [strides])
    return None if len(extents) > 1 else own[0] if own else 0


def _joined(shape: Sequence[int], given: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The fewest extents that go with all of some strides, and these: neighbours along which all follow one another
    are one, and those of 1 none."""
    extents: list[int] = []
    strides: list[list[int]] = [[] for _ in given]
    for i, extent in enumerate(shape):
        if extent == 1:
            continue
        joins = extents and all(own[-1] == extent * x[i] for own, x in zip(strides, given, strict=True))
        if joins or 0 in shape:
            extents[-1:] = [extents[-1] * extent if extents else extent]
            for own, x in zip(strides, given, strict=True):
                own[-1:] = [x[i]]
        else:
            extents.append(extent)
            for own, x in zip(strides, given, strict=True):
                own.append(x[i])
    return tuple(extents), [tuple(own) for own in strides]


def broadcast(name: str, own: tuple[int, ...], strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of extents expanded to a shape: 0 along those that are lacking."""
    missing = len(shape) - len(own)
    if missing < 0 or any(e not in (1, f) for e, f in zip(own, shape[missing:], strict=True)):
        raise OperandError(f"{name} has shape {own}, which does not broadcast to {shape}")
    steps = zip(own, shape[missing:], strides, strict=True)
    return (0,) * missing + tuple([0 if e != f else step for e, f, step in steps])


def collapse(name: str, shape: Sequence[int], strides: Sequence[int]) -> int:
    """The one stride of several batch extents; OperandError where they have several."""
    if (stride := one_stride(shape, strides)) is None:
        raise OperandError(
            f"{name}: batch extents {tuple(shape)} with strides {tuple(strides)} (0: broadcast) do not "
            f"collapse to one stride: pass {name}.expand(...).contiguous(), or loop over the outer extents"
        )
    return stride


def stacks(matrices: Matrices) -> bool:
    """Whether the rows of the whole batch lie at one stride, and along one of the extents contiguously."""
    x = matrices
    if x.rows > 1:
        return x.batch_stride != 0 and x.batch_stride == x.rows * x.row_stride
    return x.batch_stride == 1 or (x.batch_stride != 0 and (x.columns == 1 or x.column_stride == 1))


def stacked(matrices: Matrices, rows: int) -> Matrices:
    """The whole batch as one matrix."""
    step = matrices.batch_stride if matrices.rows == 1 else matrices.row_stride
    return replace(matrices, rows=rows, row_stride=step, batch_strides=())


def operand(x: Matrices, batch: tuple[int, ...], columns_contiguous: str, rows_contiguous: str, first: str) -> Operand:
    """Decide which extent is contiguous: where both could be, the better aligned, and on a tie ``first``."""
    strides = x.batch_strides
    tensor, bits = x.tensor, DTYPES[x.tensor.dtype].bits
    if 0 in (x.rows, x.columns, *batch):
        # Nothing will be read; kernels run no K tile, or do not run.
        return Operand(x.name, tensor.ptr, tensor.dtype, first, 128 // bits, 0, 16)
    # One stride, and of a nested batch how many of it lie along each extent.
    steps: tuple[int, ...] = ()
    batch_stride = x.batch_stride if batch != (1,) else 0
    if len(strides) > 1:
        batch_stride = gcd(*strides)
        steps = tuple(stride // (batch_stride or 1) for stride in strides)
    last = sum((extent - 1) * step for extent, step in zip(batch, steps, strict=True)) if steps else 0
    # An operand with strides that are too long for TMA counts as one without a contiguous extent.
    movable = not strides or (
        all(0 <= stride * bits < 8 * TMA_MAX_STRIDE for stride in (*strides, batch_stride)) and last <= MAX_EXTENT
    )
    apart = x.row_stride if x.rows > 1 else 0, x.column_stride if x.columns > 1 else 0

    def described(major: str, *others: int) -> Operand:
        aligned = tensor.ptr | 16
        for step in (*others, batch_stride):
            aligned |= step * bits // 8
        stride = others[0] if len(others) == 1 else 0
        at = x.name, tensor.ptr, tensor.dtype
        return Operand(*at, major, stride, batch_stride, aligned & -aligned, *apart, steps)

    layouts = []
    for major, inner, inner_stride, outer, stride in (
        (columns_contiguous, x.columns, x.column_stride, x.rows, x.row_stride),
        (rows_contiguous, x.rows, x.row_stride, x.columns, x.column_stride),
    ):
        regular = outer == 1 or 0 < stride * bits < 8 * TMA_MAX_STRIDE
        if (inner == 1 or inner_stride == 1) and regular and movable:
            layouts.append(described(major, stride if outer > 1 else 0))
    if not layouts:
        return described("any", *apart)
    return max(layouts, key=lambda layout: (layout.align, layout.major == first))


def refuse_overlap(x: Matrices, batch: tuple[int, ...]) -> None:
    """Elements of D, or of another output, that share an address would be written by several CTAs."""
    extents = ((x.rows, x.row_stride), (x.columns, x.column_stride), *zip(batch, x.batch_strides, strict=True))
    if 0 in (x.rows, x.columns, *batch):
        return
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for extent, stride in extents if extent > 1):
        if stride <= reach:
            raise OperandError(
                f"{x.name} has strides {x.tensor.strides} for shape {x.tensor.shape}: its elements overlap"
            )
        reach += (extent - 1) * stride
