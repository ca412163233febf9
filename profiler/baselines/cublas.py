"""The same GEMM by cuBLAS, through torch, or the nearest that it has."""

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
    """What it solves; it may lack the block scales, or have D in another type."""
    operands: Sequence[OperandSet]
    """What it reads and writes."""
    launch: Launch


_FP8_PAIRS = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
"""What cuBLASLt multiplies of fp8 (cuBLAS documentation, ``cublasLtMatmul``)."""


def lacking(problem: GemmProblem) -> str:
    """What of a problem none of the baselines has; empty where some may have it."""
    majors = (problem.a_major, problem.b_major, problem.c_major, problem.d_major)
    others = (
        (problem.batching != "strided", f"{problem.batching} matrices"),
        (problem.epilogue != LINEAR, "an expression"),
        (is_mixed(problem.a_dtype, problem.b_dtype), f"{problem.a_dtype} operands beside {problem.b_dtype}"),
        ("any" in majors, "matrices that are contiguous along no extent"),
    )
    return " and ".join(what for applies, what in others if applies)


def nearest(problem: GemmProblem) -> GemmProblem | None:
    """What cuBLAS and cuBLASLt can solve in a problem's place: itself, or the same with D in another type.

    8-bit integers give s32 whatever D is, and D of fp8 is bf16: the nearest there is. None where there is nothing near,
    as for groups, arrays and expressions.
    """
    if lacking(problem):
        return None
    a, d = problem.a_dtype, problem.d_dtype
    solved = problem
    if (a, problem.b_dtype) == ("s8", "s8"):
        solved = problem.but(d_dtype="s32", accumulator="s32")
    elif (a, problem.b_dtype) in _FP8_PAIRS:
        solved = problem.but(d_dtype="bf16" if DTYPES[d].bits == 8 else d, accumulator="f32")
    elif a != problem.b_dtype or DTYPES[a].bits < 16 or d not in ("f32" if a == "tf32" else a, "f32"):
        return None
    return solved if problem.c_dtype in (None, solved.d_dtype) else None


def with_d(problem: GemmProblem, solved: GemmProblem, operands: Sequence[OperandSet]) -> Sequence[OperandSet]:
    """The operands of a problem with a D for what is solved in its place."""
    if solved.d_dtype == problem.d_dtype:
        return operands
    device, by_rows = operands[0].d.device, problem.d_major == "n"
    return [
        replace(o, d=matrix(problem.m, problem.n, problem.batch, by_rows, solved.d_dtype, device)) for o in operands
    ]


def unscaled(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLAS on each operand set, or None where torch has no such GEMM.

    torch may still refuse a shape or a layout with a RuntimeError at the first launch.
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
    """cuBLAS with one scale, 1, for each operand, and fast accumulation, in place of block scales."""
    solved = nearest(problem)
    if solved is None or problem.a_scale == "none" or problem.batch > 1 or problem.c_dtype is not None:
        return None
    solved = replace(solved, a_scale="none", b_scale="none", promote=0)
    operands = [replace(o, a_scale=None, b_scale=None) for o in with_d(problem, solved, operands)]
    return Baseline(solved, operands, _scaled_mm(operands, fast=True))


def _matmul(problem: GemmProblem, operands: Sequence[OperandSet]) -> Launch:
    """``torch.mm`` and its like.

    torch adds C in place: with another tensor for C it would copy C to D first. So D stands for C, which moves the same
    bytes.
    """
    options: dict[str, Any] = {}
    if problem.d_dtype != ("f32" if problem.a_dtype == "tf32" else problem.a_dtype):
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
    """torch's global switches as the problem asks, and back."""
    settings = torch().backends.cuda.matmul
    half, single = settings.allow_fp16_accumulation, torch().get_float32_matmul_precision()
    settings.allow_fp16_accumulation = problem.accumulator == "f16"
    torch().set_float32_matmul_precision("high" if problem.a_dtype == "tf32" else "highest")
    try:
        yield
    finally:
        settings.allow_fp16_accumulation = half
        torch().set_float32_matmul_precision(single)
