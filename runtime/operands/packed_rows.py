"""What a problem is chosen for whatever its M and batch (``batch_invariant``).

A kernel sums each element in an order of its own, the same in every run. So a result changes with M only if the kernel
does, or if CTAs share K by what M leaves them. The selector therefore picks one kernel for every M, in which a CTA
sums all of K, and here whatever else of a problem may change with M is put at what packed operands of any M have, or is
refused.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.operands.matrices import Operand

_ALIGN = 16
"""The alignment in bytes that counts most."""


def with_packed_rows(gemm: Gemm) -> Gemm:
    """The GEMM as it is chosen for whatever its M and batch: of A, C and D majors and alignments that all M have.

    OperandError where the operands have other ones, as the kernel would then be another.
    """
    problem, given = packed_rows(gemm.problem), gemm.problem
    if given.batching == "kgrouped":
        raise OperandError(
            "batch_invariant: groups along K share the K of the call, so a group's kernel depends on the others: call "
            "gemmill.matmul for each group, or leave out batch_invariant"
        )
    a = _rows(gemm.a, given.k, "k", problem.a_align)
    d = _rows(gemm.d, given.d_columns, "n", problem.d_align)
    c = gemm.c and _rows(gemm.c, given.d_columns, "n", problem.c_align)
    return replace(gemm, a=a, b=replace(gemm.b, align=problem.b_align), c=c, d=d, problem=problem)


def packed_rows(problem: GemmProblem) -> GemmProblem:
    """The problem with A, C and D row-major and aligned as packed rows are, however many; and B as in any batch."""

    def align(dtype: DTypeName | None, elements: int) -> int:
        return gcd(_ALIGN, -(-elements * DTYPES[dtype].bits // 8)) if dtype else _ALIGN

    return problem.but(
        a_major="k",
        a_align=align(problem.a_dtype, problem.k),
        b_align=min(problem.b_align, align(problem.b_dtype, problem.k * problem.n)),
        c_major="n" if problem.c_dtype else None,
        c_align=align(problem.c_dtype, problem.d_columns),
        d_major="n",
        d_align=align(problem.d_dtype, problem.d_columns),
    )


def _rows(x: Operand, columns: int, major: str, align: int) -> Operand:
    """A, C or D as rows of so many elements, contiguous and aligned to so many bytes."""
    if x.major == major:
        if x.align < align:
            raise OperandError(
                f"batch_invariant: address or strides of {x.name} are multiples of no more than {x.align} bytes, "
                f"those of packed rows of {align}: lay it out as {x.name}.contiguous().clone() is, or leave out "
                "batch_invariant"
            )
        return replace(x, align=align)
    if columns > 1:
        raise OperandError(
            f"batch_invariant: {x.name} is not contiguous along {major.upper()}, or its rows overlap, so which kernels "
            f"serve it depends on M: lay it out as {x.name}.contiguous() is, or leave out batch_invariant"
        )
    return replace(x, major=major, stride=x.row_stride, align=align)
