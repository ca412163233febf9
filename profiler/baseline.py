"""The same GEMM by cuBLAS, through torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmill.library.problem import GemmProblem
from gemmill.profiler.operands import OperandSet, torch
from gemmill.profiler.timing import Launch

BASELINE = "cublas"
"""Stands where a kernel's name would."""


def cublas(problem: GemmProblem, operands: Sequence[OperandSet]) -> Launch | None:
    """A launch of cuBLAS on each operand set, or None where torch has no such GEMM.

    torch adds C in place: with another tensor for C it would copy C to D first. So D stands for C, which moves the same
    bytes.
    """
    same = problem.a_dtype == problem.b_dtype and problem.c_dtype in (None, problem.d_dtype)
    if not same or problem.d_dtype not in (problem.a_dtype, "f32"):
        return None
    torch().backends.cuda.matmul.allow_fp16_accumulation = problem.accumulator == "f16"
    options: dict[str, Any] = {}
    if problem.d_dtype != problem.a_dtype:
        options["out_dtype"] = torch().float32
    if problem.c_dtype is None:
        multiply = torch().mm if problem.batch == 1 else torch().bmm
        return lambda index: multiply(operands[index].a, operands[index].b, out=operands[index].d, **options)
    add = torch().addmm if problem.batch == 1 else torch().baddbmm

    def launch(index: int) -> None:
        a, b, d = operands[index].a, operands[index].b, operands[index].d
        add(d, a, b, out=d, **options)

    return launch
