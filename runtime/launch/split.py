"""Split operands: f32 matrices, and the layout of their components in aligned memory, to which a kernel writes them
(emitters/splitting.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from gemmill.emitters.splitting import BLOCK, JOB, JOBS, THREADS, VECTOR, emit_splitting, entry
from gemmill.library.config.model import InputName
from gemmill.library.dtypes import DTYPES, DType, DTypeName
from gemmill.library.legality.quantities import align_up
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.conversion import BEGIN, ConversionKernel
from gemmill.runtime.operands.gemm import Gemm


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

    @property
    def row_bytes(self) -> int:
        """Bytes from a row of a component to the next: whole L2 lines."""
        return align_up(max(self.columns, 1) * self.split.loaded.bytes, tma.LINE)

    @property
    def end(self) -> int:
        """End of the components in their memory."""
        return self.offset + self.matrices * self.split.components * self.rows * self.row_bytes

    @property
    def ctas(self) -> int:
        """CTAs of the kernel that split it."""
        return -(-self.matrices * self.rows * -(-self.columns // VECTOR) // BLOCK)

    def job(self, begin: int) -> bytes:
        """Return the job of the kernel for this operand, except for two addresses; ``begin`` is the first of its CTAs.
        Offsets are relative to the operand and to the memory of the components."""
        counts = self.matrices * self.rows, self.rows, self.columns
        return JOB.pack(0, self.offset, self.stride, self.row_bytes, self.matrix_stride, *counts, begin)


def kernel_of(dtype: DTypeName) -> ConversionKernel:
    """Return the kernel that splits operands of a type."""
    row = DTYPES[dtype]
    purpose = f"which splits operands of {dtype}"
    return ConversionKernel(entry(row), partial(emit_splitting, row), JOB.size, JOBS, THREADS, purpose)


def split(gemm: Gemm, offset: int) -> tuple[Gemm, tuple[SplitOperand, ...]]:
    """Return the GEMM with the components of A and B as they will lie in aligned memory, which starts at
    :data:`tma.ALIGNMENT`, from an offset on, and the operands that are split to there."""
    operands: list[SplitOperand] = []
    names: tuple[InputName, ...] = ("a", "b")
    for name in names:
        operand, (columns, rows) = getattr(gemm, name), gemm.problem.extents_of(name)
        row = DTYPES[gemm.problem.a_dtype]
        part = SplitOperand(
            name=name,
            split=row,
            matrices=gemm.problem.batch if operand.batch_stride else 1,
            matrix_stride=operand.batch_stride * row.bytes,
            rows=rows,
            columns=columns,
            stride=operand.stride * row.bytes if rows > 1 else columns * row.bytes,
            offset=align_up(operands[-1].end if operands else offset, BEGIN),
        )
        operands.append(part)
        stride = part.row_bytes // row.loaded.bytes
        there = replace(
            operand,
            ptr=tma.ALIGNMENT,
            dtype=row.loaded.name,
            stride=stride,
            batch_stride=row.components * rows * stride if operand.batch_stride else 0,
            align=tma.ALIGNMENT,
            components=row.components,
            component_stride=max(rows, 1) * stride,
        )
        gemm = replace(gemm, **{name: there})
    return gemm, tuple(operands)
