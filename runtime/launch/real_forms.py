"""Real forms of complex operands, and their layout in aligned memory, to which a kernel writes them
(emitters/real_forms.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gemmill.emitters.real_forms import BLOCK, JOB, JOBS, THREADS, emit_real_forms, entry
from gemmill.library.config.model import InputName
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.legality.quantities import align_up
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.conversion import BEGIN, ConversionKernel
from gemmill.runtime.operands.complex_products import RealForm
from gemmill.runtime.operands.gemm import Gemm


@dataclass(frozen=True, slots=True)
class RealOperand:
    """A complex operand with the place of its real form."""

    name: InputName
    """``a`` or ``b`` of the GEMM."""
    form: RealForm
    offset: int
    """Offset of the real form in its memory."""

    @property
    def end(self) -> int:
        """End of the real form in its memory."""
        x = self.form
        return self.offset + 2 * x.matrices * x.rows * x.pitch

    @property
    def ctas(self) -> int:
        """CTAs of the kernel that write it."""
        x = self.form
        return -(-x.matrices * x.rows * x.columns // BLOCK)

    def job(self, begin: int) -> bytes:
        """Return the job of the kernel for this operand, except for two addresses; ``begin`` is the first of its CTAs.
        Offsets are relative to the operand and to the memory of the real form."""
        x = self.form
        strides = x.row_stride, x.column_stride, x.matrix_stride, x.pitch
        counts = x.matrices * x.rows, x.rows, x.columns
        return JOB.pack(0, self.offset, *strides, *counts, x.signs, x.is_paired, begin)


def kernel_of(dtype: DTypeName) -> ConversionKernel:
    """Return the kernel that writes the real forms of operands with parts of a type."""
    size = DTYPES[dtype].bytes
    purpose = "which writes complex operands as real ones"
    return ConversionKernel(entry(size), partial(emit_real_forms, size), JOB.size, JOBS, THREADS, purpose)


def as_real(gemm: Gemm, offset: int) -> tuple[Gemm, tuple[RealOperand, ...]]:
    """Return the GEMM with its real forms as they will lie in aligned memory, which starts at :data:`tma.ALIGNMENT`,
    from an offset on, and the operands that are written to there."""
    operands: list[RealOperand] = []
    names: tuple[InputName, ...] = ("a", "b")
    for name in names:
        operand = getattr(gemm, name)
        if operand.real_form is not None:
            at = align_up(operands[-1].end if operands else offset, BEGIN)
            operands.append(RealOperand(name, operand.real_form, at))
            gemm = gemm._replace(**{name: operand._replace(ptr=tma.ALIGNMENT, real_form=None)})
    return gemm, tuple(operands)
