"""What keeps the bits of a call the same: from run to run (``deterministic``), whatever M (``batch_invariant``).

A kernel sums each element in an order of its own, the same in every run. So a result changes with M only if the kernel
does, or if blocks share K by what M leaves them. The selector therefore picks one kernel for every M, in which a block
sums all of K, and here whatever else of a problem may change with M is put at what packed operands of any M have, or is
refused.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from gemmill.library.config import GemmConfig
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError, UnsupportedProblemError
from gemmill.library.names import kernel_name
from gemmill.runtime.operands import Gemm, Operand
from gemmill.runtime.selector import sums_in_one_block

_ALIGN = 16
"""The alignment in bytes that counts most."""


def refuse_atomic_sums(epilogue: Epilogue, option: str) -> None:
    """OperandError where the last bits of an epilogue's outputs change from run to run; ``option`` forbids that."""
    for output in epilogue.outputs:
        if output.role == "sum":
            raise OperandError(
                f"{option}: `{output}` adds up atomically, in an order that changes from run to run; write what it "
                f"sums to a matrix, as in `{output.name}[m, n] = ...`, and sum that (max and min are allowed)"
            )


def of_any_rows(gemm: Gemm) -> Gemm:
    """The GEMM as it is chosen for whatever its M and batch: of A, C and D majors and alignments that all M have.

    OperandError where the operands have other ones, as the kernel would then be another.
    """
    if gemm.is_transposed:
        return of_any_rows(gemm.transposed).transposed
    problem = gemm.problem
    if problem.batching == "kgrouped":
        raise OperandError(
            "batch_invariant: groups along K share the K of the call, so a group's kernel depends on the others: call "
            "gemmill.matmul for each group, or leave out batch_invariant"
        )
    a = _rows(gemm.name("a"), gemm.a, problem.k, "k", "K")
    c = gemm.c and _rows(gemm.name("c"), gemm.c, problem.d_columns, "n", "N")
    d = _rows(gemm.name("d"), gemm.d, problem.d_columns, "n", "N")
    # A matrix of a batch must be aligned as it is alone and among others.
    b = replace(gemm.b, align=min(gemm.b.align, gcd(_ALIGN, -(-problem.k * problem.n * _bits(gemm.b) // 8))))
    problem = replace(problem, a_major="k", a_align=a.align, b_align=b.align, d_major="n", d_align=d.align)
    if c is not None:
        problem = replace(problem, c_major="n", c_align=c.align)
    return replace(gemm, a=a, b=b, c=c, d=d, problem=problem)


def refuse_shared_k(config: GemmConfig) -> None:
    """UnsupportedProblemError where a kernel that the caller names does not sum all of K in one block."""
    if not sums_in_one_block(config):
        raise UnsupportedProblemError(
            f"batch_invariant: kernel {kernel_name(config)} shares K between blocks "
            f"({config.scheduler.decomposition}); name one that does not, or leave out batch_invariant"
        )


def _rows(name: str, x: Operand, columns: int, major: str, extent: str) -> Operand:
    """A, C or D with its rows contiguous, and aligned as packed rows are, however many there are."""
    align = gcd(_ALIGN, -(-columns * _bits(x) // 8))
    if x.major != major and columns > 1:
        raise OperandError(
            f"batch_invariant: {name} is not contiguous along {extent}, or its rows overlap, so which kernels serve it "
            f"depends on M: lay it out as {name}.contiguous() is, or leave out batch_invariant"
        )
    if x.major == major and x.align < align:
        raise OperandError(
            f"batch_invariant: address or strides of {name} are multiples of no more than {x.align} bytes, those of "
            f"packed rows of {align}: lay it out as {name}.contiguous().clone() is, or leave out batch_invariant"
        )
    stride = x.stride if x.major == major else x.row_stride
    return replace(x, major=major, stride=stride, align=align)


def _bits(x: Operand) -> int:
    return DTYPES[x.dtype].bits
