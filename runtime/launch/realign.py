"""Realigned operands: operands that TMA cannot load in place, their rows, and the layout of their copies in aligned
memory, which a kernel makes (emitters/copies.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from gemmill.emitters.copies import BLOCK, ENTRY, JOB, JOBS, THREADS, VECTOR, emit_copies
from gemmill.library.dtypes import DTYPES
from gemmill.library.legality.quantities import align_up
from gemmill.runtime import driver
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.conversion import BEGIN, ConversionKernel
from gemmill.runtime.operands.gemm import Gemm


@dataclass(frozen=True, slots=True)
class RealignedOperand:
    """Matrices of an operand in bytes, in place and as copied."""

    name: str
    """``a``, ``b`` or ``c`` of the GEMM."""
    matrices: int
    matrix_stride: int
    rows: int
    row_bytes: int
    stride: int
    """From a row to the next."""
    offset: int
    """Offset of the copy in its memory."""

    @property
    def realigned_stride(self) -> int:
        """From a row of the copy to the next: whole L2 lines, since rows of boxes should not cross lines."""
        return align_up(self.row_bytes, tma.LINE)

    @property
    def end(self) -> int:
        """End of the copy in its memory."""
        return self.offset + self.matrices * self.rows * self.realigned_stride

    @property
    def vectors(self) -> int:
        """Vectors per row of the copy."""
        return -(-self.row_bytes // VECTOR)

    @property
    def ctas(self) -> int:
        """CTAs of the kernel that copy it."""
        return -(-self.matrices * self.rows * self.vectors // BLOCK)

    def job(self, begin: int) -> bytes:
        """Return the job of the kernel for this operand, except for two addresses; ``begin`` is the first of its CTAs.
        Offsets are relative to the operand and to the memory of the copies."""
        strides = self.stride, self.realigned_stride, self.matrix_stride
        counts = self.matrices * self.rows, self.rows, self.vectors
        return JOB.pack(0, self.offset, *strides, self.row_bytes, *counts, begin)


def kernel_of(device: int) -> ConversionKernel:
    """Return the copy kernel for a GPU."""
    purpose = f"which copies operands that are not aligned to {tma.ALIGNMENT} bytes"
    return ConversionKernel(ENTRY, partial(emit_copies, driver.overlaps(device)), JOB.size, JOBS, THREADS, purpose)


def realign(gemm: Gemm, names: Iterable[str]) -> tuple[Gemm, tuple[RealignedOperand, ...]]:
    """Return the GEMM with some operands as they will lie in aligned memory, which starts at :data:`tma.ALIGNMENT`, and
    the copies that move them there."""
    turned = {"a": "mn", "b": "k", "c": "m"}
    copies: list[RealignedOperand] = []
    for name in names:
        operand, (columns, rows) = getattr(gemm, name), gemm.problem.extents_of(name)
        size = DTYPES[operand.dtype].bytes
        copy = RealignedOperand(
            name=name,
            matrices=gemm.problem.batch if operand.batch_stride else 1,
            matrix_stride=operand.batch_stride * size,
            rows=rows,
            row_bytes=columns * size,
            stride=operand.stride * size if rows > 1 else columns * size,
            offset=align_up(copies[-1].end, BEGIN) if copies else 0,
        )
        copies.append(copy)
        stride = copy.realigned_stride // size
        steps, is_turned = (stride if rows > 1 else 0, 1 if columns > 1 else 0), operand.major == turned[name]
        there = operand._replace(
            ptr=tma.ALIGNMENT,
            stride=steps[0],
            batch_stride=rows * stride if operand.batch_stride else 0,
            align=tma.ALIGNMENT,
            row_stride=steps[is_turned],
            column_stride=steps[not is_turned],
        )
        gemm = gemm._replace(**{name: there})
    return gemm, tuple(copies)
