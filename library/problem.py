"""One GEMM to be solved: D (M x N) = alpha * A (M x K) @ B (K x N) + beta * C, for each of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from gemmill.library.config import MajorAB, MajorCD
from gemmill.library.dtypes import DTypeName


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """Extents and operand formats of a GEMM. A plain dataclass: the API makes one for each new signature."""

    m: int
    n: int
    k: int
    batch: int
    a_dtype: DTypeName
    a_major: MajorAB
    b_dtype: DTypeName
    b_major: MajorAB
    accumulator: DTypeName
    d_dtype: DTypeName
    d_major: MajorCD
    c_dtype: DTypeName | None = None
    """None for a GEMM without C."""
    c_major: MajorCD | None = None
    a_align: int = 16
    """Largest power of two up to 16, in bytes, that divides base address and strides of A."""
    b_align: int = 16
    c_align: int = 16
    d_align: int = 16

    @property
    def flops(self) -> int:
        """Floating-point operations: 2 M N K batch."""
        return 2 * self.m * self.n * self.k * self.batch
