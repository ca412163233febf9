"""The same GEMM by cuBLAS through torch, or the most similar GEMM that it supports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.problem import GemmProblem, is_mixed
from gemmill.profiler.measure.graph_timing import Launch
from gemmill.profiler.measure.operands import OperandSet, matrix, torch


@dataclass(frozen=True, slots=True)
class Baseline:
    """A GEMM of another library on the operands of a problem."""

    problem: GemmProblem
    """The problem that the library solves: without block scales, or with another type of D, if it lacks these."""
    operands: Sequence[OperandSet]
    """Its operands."""
    launch: Launch


_FP8_PAIRS = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
"""Combinations of fp8 types that cuBLASLt supports (cuBLAS documentation, ``cublasLtMatmul``)."""


def lacking(problem: GemmProblem) -> str:
    """The properties of a problem that no baseline supports; empty if a baseline may support it."""
    majors = (problem.a_major, problem.b_major, problem.c_major, problem.d_major)
    properties = (
        (problem.batching != "strided", f"{problem.batching} matrices"),
        (problem.epilogue != LINEAR, "epilogue expressions"),
        (is_mixed(problem.a_dtype, problem.b_dtype), f"{problem.a_dtype} operands with {problem.b_dtype}"),
        ("any" in majors, "matrices without a contiguous extent"),
    )
    return " and ".join(description for applies, description in properties if applies)


def nearest(problem: GemmProblem) -> GemmProblem | None:
    """The problem that cuBLAS and cuBLASLt solve instead: the problem itself, or with another type of D.

    D is s32 for 8-bit integers, and bf16 instead of fp8. None if no similar problem is supported, for example for
    groups, pointer arrays and epilogue expressions.
    """
    if lacking(problem):
        return None
    a, d = problem.a_dtype, problem.d_dtype
    solved = problem
    if (a, problem.b_dtype) == ("s8", "s8"):
        solved = problem.but(d_dtype="s32", accumulator="s32")
    elif (a, problem.b_dtype) in _FP8_PAIRS:
        solved = problem.but(d_dtype="bf16" if DTYPES[d].bits == 8 else d, accumulator="f32")
    elif a != problem.b_dtype or DTYPES[a].bits < 16 or d not in (DTYPES[a].stored_as or a, "f32"):
        return None
    return solved if problem.c_dtype in (None, solved.d_dtype) else None


def with_d(problem: GemmProblem, solved: GemmProblem, operands: Sequence[OperandSet]) -> Sequence[OperandSet]:
    """The operands of a problem with a new D if the solved problem has another type of D."""
    if solved.d_dtype == problem.d_dtype:
        return operands
    device, by_rows = operands[0].d.device, problem.d_major == "n"
    return [
        replace(o, d=matrix(problem.m, problem.n, problem.batch, by_rows, solved.d_dtype, device)) for o in operands
    ]


def unscaled(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLAS on each operand set; None if torch does not support the GEMM.

    torch may still raise RuntimeError for a shape or a layout at the first launch.
    """
    solved = nearest(problem)
    if solved is None or problem.a_scale != "none":
        return None
    if DTYPES[problem.a_dtype].bits > 8:
        return Baseline(solved, operands, _matmul(problem, operands))
    if problem.batch > 1 or problem.c_dtype is not None:
        return None
    operands = with_d(problem, solved, operands)
    if solved.accumulator == "s32":
        return Baseline(solved, operands, lambda i: _int_mm(operands[i]))
    return Baseline(solved, operands, _scaled_mm(operands, fast=solved.promote == 0))


def per_tensor(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLAS with one scale of 1 per operand instead of block scales, and with fast accumulation."""
    solved = nearest(problem)
    if solved is None or problem.a_scale == "none" or problem.batch > 1 or problem.c_dtype is not None:
        return None
    solved = replace(solved, a_scale="none", b_scale="none", promote=0)
    operands = [replace(o, a_scale=None, b_scale=None) for o in with_d(problem, solved, operands)]
    return Baseline(solved, operands, _scaled_mm(operands, fast=True))


def _matmul(problem: GemmProblem, operands: Sequence[OperandSet]) -> Launch:
    """``torch.mm``, ``bmm``, ``addmm`` or ``baddbmm``.

    torch adds C in place; it would first copy a separate C to D. So C is D itself, which moves as many bytes.
    """
    options: dict[str, Any] = {}
    if problem.d_dtype != (DTYPES[problem.a_dtype].stored_as or problem.a_dtype):
        options["out_dtype"] = torch().float32
    batched = problem.batch > 1
    multiply, add = (torch().bmm, torch().baddbmm) if batched else (torch().mm, torch().addmm)

    def launch(index: int) -> None:
        a, b, d = operands[index].a, operands[index].b, operands[index].d
        with _precision(problem):
            if problem.c_dtype is None:
                multiply(a, b, out=d, **options)
            else:
                add(d, a, b, out=d, **options)

    return launch


def _int_mm(operands: OperandSet) -> None:
    torch()._int_mm(operands.a, operands.b, out=operands.d)


def _scaled_mm(operands: Sequence[OperandSet], fast: bool) -> Launch:
    """``torch._scaled_mm`` with scales of 1."""
    one = torch().ones((), device=operands[0].d.device)

    def launch(index: int) -> None:
        a, b, d = operands[index].a, operands[index].b, operands[index].d
        torch()._scaled_mm(a, b, one, one, out_dtype=d.dtype, use_fast_accum=fast, out=d)

    return launch


@contextmanager
def _precision(problem: GemmProblem) -> Iterator[None]:
    """Set torch's global precision switches for a problem, and restore them."""
    settings = torch().backends.cuda.matmul
    half, single = settings.allow_fp16_accumulation, torch().get_float32_matmul_precision()
    settings.allow_fp16_accumulation = problem.accumulator == "f16"
    torch().set_float32_matmul_precision("high" if problem.a_dtype == "tf32" else "highest")
    try:
        yield
    finally:
        settings.allow_fp16_accumulation = half
        torch().set_float32_matmul_precision(single)
