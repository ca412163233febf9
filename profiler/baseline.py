"""The same GEMM by cuBLAS, through torch, or the nearest that it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem
from gemmill.profiler.operands import OperandSet, matrix, torch
from gemmill.profiler.timing import Launch

CUBLAS = "cublas"
"""Stands where a kernel's name would, for a baseline that solves the problem itself."""
PER_TENSOR = "cublas-per-tensor"
"""The same for fp8 operands of which each has one scale, in place of block scales."""
BASELINES = (CUBLAS, PER_TENSOR)
"""All names of baselines."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A GEMM by cuBLAS on the operands of a problem."""

    name: str
    """One of :data:`BASELINES`."""
    problem: GemmProblem
    """What it solves; it may lack the block scales, or have D in another type."""
    operands: Sequence[OperandSet]
    """What it reads and writes."""
    launch: Launch


def baseline(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLAS on each operand set, or None where torch has no such GEMM.

    8-bit integers give s32 whatever D is, and D of fp8 is bf16: the nearest there is. torch may still refuse a shape or
    a layout with a RuntimeError at the first launch.
    """
    bits = {DTYPES[problem.a_dtype].bits, DTYPES[problem.b_dtype].bits}
    if bits == {8}:
        return _eight_bit(problem, operands)
    if problem.a_dtype != problem.b_dtype or problem.c_dtype not in (None, problem.d_dtype) or bits == {4}:
        return None
    natural = "f32" if problem.a_dtype == "tf32" else problem.a_dtype
    if problem.d_dtype not in (natural, "f32"):
        return None
    return Baseline(CUBLAS, problem, operands, _matmul(problem, operands, natural))


def _matmul(problem: GemmProblem, operands: Sequence[OperandSet], natural: str) -> Launch:
    """``torch.mm`` and its like.

    torch adds C in place: with another tensor for C it would copy C to D first. So D stands for C, which moves the same
    bytes.
    """
    options: dict[str, Any] = {}
    if problem.d_dtype != natural:
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


def _eight_bit(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """``torch._int_mm`` and ``torch._scaled_mm`` with scales of 1."""
    pair = (problem.a_dtype, problem.b_dtype)
    integer = pair == ("s8", "s8")
    if problem.batch > 1 or problem.c_dtype is not None or not (integer or pair in _FP8_PAIRS):
        return None
    scaled = problem.a_scale != "none"
    d_dtype = problem.d_dtype
    if integer:
        d_dtype = "s32"
    elif DTYPES[d_dtype].bits == 8:
        d_dtype = "bf16"
    solved = replace(problem, d_dtype=d_dtype, a_scale="none", b_scale="none", accumulator="s32" if integer else "f32")
    if scaled:
        solved = replace(solved, promote=0)
    if solved != problem:
        device, shape = operands[0].d.device, (problem.m, problem.n)
        operands = [
            OperandSet(o.a, o.b, None, matrix(*shape, 1, problem.d_major == "n", d_dtype, device)) for o in operands
        ]
    if integer:
        return Baseline(CUBLAS, solved, operands, lambda i: _int_mm(operands[i]))
    one = torch().ones((), device=operands[0].d.device)
    fast = solved.promote == 0
    return Baseline(PER_TENSOR if scaled else CUBLAS, solved, operands, lambda i: _scaled_mm(operands[i], one, fast))


_FP8_PAIRS = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
"""What cuBLASLt multiplies of fp8 (cuBLAS documentation, ``cublasLtMatmul``)."""


def _int_mm(operands: OperandSet) -> None:
    torch()._int_mm(operands.a, operands.b, out=operands.d)


def _scaled_mm(operands: OperandSet, one: Any, fast: bool) -> None:
    d = operands.d
    torch()._scaled_mm(operands.a, operands.b, one, one, out_dtype=d.dtype, use_fast_accum=fast, out=d)


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
