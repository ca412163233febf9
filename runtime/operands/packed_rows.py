"""Makes the selection of a kernel independent of M and the batch (``batch_invariant``).

Each kernel sums an element in its own order, which is the same in every run. A result therefore changes with M only if
the kernel changes, or if how CTAs share K depends on M. The selector picks one kernel for every M, in which one CTA
sums all of K. This module sets every other property of a problem that may change with M to that of packed operands, or
refuses it.
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
"""The largest alignment that matters, in bytes."""


def with_packed_rows(gemm: Gemm) -> Gemm:
    """Return the GEMM with majors and alignments of A, C and D that hold for every M.

    Raises:
        OperandError: the operands have other layouts, so that the kernel would depend on M.
    """
    problem, original = packed_rows(gemm.problem), gemm.problem
    if original.batching == "kgrouped":
        raise OperandError(
            "batch_invariant is not supported for groups along K: they share the K of the call, so the kernel of a "
            "group would depend on the others. Call gemmill.matmul for each group, or leave out batch_invariant"
        )
    a = _packed(gemm.a, original.k, "k", problem.a_align)
    d = _packed(gemm.d, original.d_columns, "n", problem.d_align)
    c = gemm.c and _packed(gemm.c, original.d_columns, "n", problem.c_align)
    return replace(gemm, a=a, b=replace(gemm.b, align=problem.b_align), c=c, d=d, problem=problem)


def packed_rows(problem: GemmProblem) -> GemmProblem:
    """Return the problem with A, C and D row-major and aligned like packed rows, whatever their number; B as in any
    batch."""

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


def _packed(operand: Operand, columns: int, major: str, align: int) -> Operand:
    """Return A, C or D as contiguous rows of ``columns`` elements, with an alignment of ``align`` bytes."""
    if operand.major == major:
        if operand.align < align:
            raise OperandError(
                f"batch_invariant: {operand.name} is aligned to {operand.align} bytes (address and strides); packed "
                f"rows are aligned to {align}: pass {operand.name}.contiguous().clone(), or leave out batch_invariant"
            )
        return replace(operand, align=align)
    if columns > 1:
        raise OperandError(
            f"batch_invariant: {operand.name} must be contiguous along {major.upper()} with rows that do not overlap, "
            f"or the choice of the kernel depends on M: pass {operand.name}.contiguous(), or leave out batch_invariant"
        )
    return replace(operand, major=major, stride=operand.row_stride, align=align)
