"""Split operands: f32 matrices, and the layout of their components in aligned memory, to which a kernel writes them
(emitters/splitting.py). Components with less range than f32 lie beside the largest magnitudes of rows of A and columns
of B, which another kernel finds first (emitters/magnitudes.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gemmill.emitters import magnitudes
from gemmill.emitters.splitting import BLOCK, JOB, JOBS, THREADS, VECTOR, emit_splitting, entry
from gemmill.library.config.model import InputName
from gemmill.library.dtypes import DTYPES, DType, DTypeName
from gemmill.library.legality.quantities import align_up
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.conversion import BEGIN, ConversionKernel
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.operands.matrices import Operand

_MAGNITUDE_BYTES = 4


@dataclass(frozen=True, slots=True)
class SplitOperand:
    """Matrices of f32 in place, and their components: for each matrix all components, one after another."""

    name: InputName
    """``a`` or ``b`` of the GEMM."""
    split: DType
    """The split type."""
    matrices: int
    matrix_stride: int
    """Bytes from a matrix to the next."""
    rows: int
    columns: int
    """Elements of a row."""
    stride: int
    """Bytes from a row to the next."""
    offset: int
    """Offset of the components in their memory."""
    is_turned: bool
    """Whether elements of a row lie along M or N, rather than K."""

    @property
    def row_bytes(self) -> int:
        """Bytes from a row of a component to the next: whole L2 lines."""
        return align_up(max(self.columns, 1) * self.split.loaded.bytes, tma.LINE)

    @property
    def components_end(self) -> int:
        """End of the components in their memory."""
        return self.offset + self.matrices * self.split.components * self.rows * self.row_bytes

    @property
    def magnitudes(self) -> Magnitudes | None:
        """The magnitudes that components of their type are scaled by."""
        return Magnitudes(self) if self.split.scales_rows else None

    @property
    def end(self) -> int:
        """End of the components and magnitudes in their memory."""
        return self.magnitudes.end if self.magnitudes else self.components_end

    @property
    def ctas(self) -> int:
        """CTAs of the kernel that split it."""
        return -(-self.matrices * self.rows * -(-self.columns // VECTOR) // BLOCK)

    def job(self, begin: int) -> bytes:
        """Return the job of the kernel for this operand, except for two addresses; ``begin`` is the first of its CTAs.
        Offsets are relative to the operand and to the memory of the components."""
        strides = self.stride, self.row_bytes, self.matrix_stride
        counts = self.matrices * self.rows, self.rows, self.columns
        scales = self.magnitudes.scales if self.magnitudes else (0, 0, 0, 0)
        return JOB.pack(0, self.offset, *strides, *scales, *counts, begin)


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """The largest magnitude of each row of A, or column of B, of a split operand, after its components: the bits of f32
    for each matrix, one after another."""

    operand: SplitOperand

    @property
    def name(self) -> InputName:
        """``a`` or ``b`` of the GEMM."""
        return self.operand.name

    @property
    def count(self) -> int:
        """Magnitudes of a matrix."""
        return self.operand.columns if self.operand.is_turned else self.operand.rows

    @property
    def offset(self) -> int:
        """Offset of the magnitudes in their memory."""
        return align_up(self.operand.components_end, BEGIN)

    @property
    def end(self) -> int:
        """End of the magnitudes in their memory."""
        return self.offset + self.operand.matrices * self.count * _MAGNITUDE_BYTES

    @property
    def scales(self) -> tuple[int, int, int, int]:
        """Bytes from the components to the magnitudes; and between those of matrices, of rows and of elements of a
        row."""
        steps = (0, _MAGNITUDE_BYTES) if self.operand.is_turned else (_MAGNITUDE_BYTES, 0)
        return self.offset - self.operand.offset, self.count * _MAGNITUDE_BYTES, *steps

    @property
    def _of_cta(self) -> int:
        """Magnitudes that a CTA finds."""
        return magnitudes.ROWS[not self.operand.is_turned]

    @property
    def ctas(self) -> int:
        """CTAs of the kernel that finds them."""
        return self.operand.matrices * -(-self.count // self._of_cta)

    def job(self, begin: int) -> bytes:
        """Return the job of the kernel, except for two addresses; ``begin`` is the first of its CTAs."""
        x, size = self.operand, self.operand.split.bytes
        strides = (size, x.stride) if x.is_turned else (x.stride, size)
        k = x.rows if x.is_turned else x.columns
        counts = self.count, k, self._of_cta
        return magnitudes.JOB.pack(0, self.offset, *strides, x.matrix_stride, *counts, begin)


def kernel_of(dtype: DTypeName) -> ConversionKernel:
    """Return the kernel that splits operands of a type."""
    row = DTYPES[dtype]
    purpose = f"which splits operands of {dtype}"
    return ConversionKernel(entry(row), partial(emit_splitting, row), JOB.size, JOBS, THREADS, purpose)


MAGNITUDES = ConversionKernel(
    magnitudes.ENTRY,
    magnitudes.emit_magnitudes,
    magnitudes.JOB.size,
    magnitudes.JOBS,
    magnitudes.THREADS,
    "which finds the scales of split operands",
    replaces=False,
)
"""The kernel that finds magnitudes."""


def kernels_of(dtype: DTypeName) -> tuple[ConversionKernel, ...]:
    """Return the kernels that split operands of a type, in order."""
    return (MAGNITUDES, kernel_of(dtype)) if DTYPES[dtype].scales_rows else (kernel_of(dtype),)


def operand_of(
    name: InputName, x: Operand, split: DType, extents: tuple[int, int], batch: int, offset: int
) -> SplitOperand:
    """Return an operand with its contiguous and its other extent, whose components begin at an offset."""
    columns, rows = extents
    return SplitOperand(
        name=name,
        split=split,
        matrices=batch if x.batch_stride else 1,
        matrix_stride=x.batch_stride * split.bytes,
        rows=rows,
        columns=columns,
        stride=x.stride * split.bytes if rows > 1 else columns * split.bytes,
        offset=offset,
        is_turned=x.major == "mn",
    )


def split(gemm: Gemm, offset: int) -> tuple[Gemm, tuple[SplitOperand, ...]]:
    """Return the GEMM with the components of A and B as they will lie in aligned memory, which starts at
    :data:`tma.ALIGNMENT`, from an offset on, and the operands that are split to there. Those of a prepared operand lie
    at its address."""
    operands: list[SplitOperand] = []
    names: tuple[InputName, ...] = ("a", "b")
    for name in names:
        operand, (columns, rows) = getattr(gemm, name), gemm.problem.extents_of(name)
        row = DTYPES[gemm.problem.a_dtype]
        is_prepared = operand.dtype == row.name
        begin = 0 if is_prepared else align_up(operands[-1].end if operands else offset, BEGIN)
        part = operand_of(name, operand, row, (columns, rows), gemm.problem.batch, begin)
        if not is_prepared:
            operands.append(part)
        stride = part.row_bytes // row.loaded.bytes
        there = operand._replace(
            ptr=operand.ptr if is_prepared else tma.ALIGNMENT,
            dtype=row.loaded.name,
            stride=stride,
            batch_stride=row.components * rows * stride if operand.batch_stride else 0,
            align=tma.ALIGNMENT,
            components=row.components,
            component_stride=max(rows, 1) * stride,
            magnitudes=part.magnitudes.offset - part.offset if part.magnitudes else None,
        )
        gemm = gemm._replace(**{name: there})
    return gemm, tuple(operands)
