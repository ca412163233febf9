"""Random operands of a problem, enough sets of them that a launch never finds its operands in the L2 cache.

torch is treated as ``Any`` and imported where it is needed: everything else of gemmill works without it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import DeviceError
from gemmill.library.problem import GemmProblem

ROTATED_BYTES = 256 << 20
"""Bytes that all sets together exceed: more than twice the L2 of any Hopper (60 MB), with room to spare."""
MAX_SETS = 1024
"""Most sets: a problem below 256 KB is bound by its launch, and finding it in L2 is how it is used."""


def torch() -> Any:
    """The module ``torch``.

    Raises:
        DeviceError: it is not installed.

    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise DeviceError(f"profiling needs PyTorch ({error}); pip install 'gemmill[cu13,torch]'") from error


def torch_dtype(name: str) -> Any:
    """torch's dtype for one of ours."""
    return getattr(torch(), DTYPES[name].torch)


@dataclass(frozen=True, slots=True)
class OperandSet:
    """Tensors of one launch: A (M, K), B (K, N), C and D (M, N), each with a leading batch extent where batch > 1."""

    a: Any
    b: Any
    c: Any
    """None for a problem without C."""
    d: Any


def matrix(rows: int, columns: int, batch: int, row_major: bool, dtype: str, device: Any) -> Any:
    """An uninitialised matrix (rows, columns), or (batch, rows, columns), contiguous along columns or along rows."""
    extents = (rows, columns) if row_major else (columns, rows)
    shape = extents if batch == 1 else (batch, *extents)
    tensor = torch().empty(shape, dtype=torch_dtype(dtype), device=device)
    return tensor if row_major else tensor.transpose(-1, -2)


def set_bytes(problem: GemmProblem) -> int:
    """Bytes of A, B, C and D."""
    m, n, k = problem.m, problem.n, problem.k
    outputs = [problem.d_dtype] + ([problem.c_dtype] if problem.c_dtype else [])
    elements = m * k * DTYPES[problem.a_dtype].bytes + k * n * DTYPES[problem.b_dtype].bytes
    return problem.batch * (elements + sum(m * n * DTYPES[dtype].bytes for dtype in outputs))


def set_count(problem: GemmProblem) -> int:
    """Operand sets that together exceed :data:`ROTATED_BYTES`: at least two, at most :data:`MAX_SETS`."""
    return min(MAX_SETS, max(2, ROTATED_BYTES // max(1, set_bytes(problem)) + 1))


def make_operands(problem: GemmProblem, seed: int, device: Any = "cuda", sets: int | None = None) -> list[OperandSet]:
    """Sets of standard normal operands; every D is filled with NaN.

    Never zeros or small integers: they draw less power and run faster than real data.
    """
    generator = torch().Generator(device=device).manual_seed(seed)
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch

    def one() -> OperandSet:
        a = matrix(m, k, batch, problem.a_major == "k", problem.a_dtype, device)
        b = matrix(k, n, batch, problem.b_major == "mn", problem.b_dtype, device)
        d = matrix(m, n, batch, problem.d_major == "n", problem.d_dtype, device)
        c = None
        if problem.c_dtype is not None:
            c = matrix(m, n, batch, problem.c_major == "n", problem.c_dtype, device)
        for tensor in (a, b, c):
            if tensor is not None:
                tensor.normal_(generator=generator)
        d.fill_(float("nan"))
        return OperandSet(a, b, c, d)

    return [one() for _ in range(set_count(problem) if sets is None else sets)]
