"""Comparison of D with the oracle, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmill.library.arithmetic import Arithmetic
from gemmill.library.oracle.elements import checked_array
from gemmill.library.oracle.oracle import oracle
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import OperandSet, factors, torch
from gemmill.profiler.measure.parts import Part, parts
from gemmill.profiler.measure.verify import Comparison


def compare_bits(
    problem: GemmProblem, operands: OperandSet, arithmetic: Arithmetic, *, swap_ab: bool = False
) -> Comparison:
    """Compare a computed D with the bits of an arithmetic.

    Args:
        problem: a problem that the oracle supports.
        operands: the operands and D, on any device.
        arithmetic: the arithmetic of the kernel.
        swap_ab: whether the kernel ran the transposed problem.
    """
    computed = operands.d if operands.d.dim() == 3 else operands.d.unsqueeze(0)
    c = None if operands.c is None else operands.c.expand(computed.shape)
    wrong, first = 0, ""
    for part in parts(problem, operands):
        expected = _bits(_expected(problem, part, arithmetic, c, swap_ab))
        found = _bits(_array(computed[part.at, part.rows], problem.d_dtype))
        places = np.argwhere(found != expected)
        if len(places) and not wrong:
            row, column = places[0].tolist()
            where = (f"D[{part.at}]" if len(computed) > 1 else "D") + f"[{part.rows.start + row}, {column}]"
            digits = 2 * found.itemsize
            first = f"{where} is 0x{found[row, column]:0{digits}x}, expected 0x{expected[row, column]:0{digits}x}"
        wrong += len(places)
    says = f"{wrong} of {computed.numel()} elements do not have the bits of {arithmetic}; {first}" if wrong else ""
    return Comparison(not wrong, float(wrong > 0), says)


def _expected(problem: GemmProblem, part: Part, arithmetic: Arithmetic, c: Any, swap_ab: bool) -> np.ndarray:
    alpha, beta = factors(problem)
    a, b = _array(part.a, problem.a_dtype), _array(part.b, problem.b_dtype)
    added = None if c is None else _array(c[part.at, part.rows], problem.d_dtype)
    dtypes = problem.a_dtype, problem.b_dtype
    if swap_ab:
        a, b, added, dtypes = b.T, a.T, None if added is None else added.T, dtypes[::-1]
    d = oracle(
        a, b, dtypes=dtypes, arithmetic=arithmetic, d_dtype=problem.d_dtype, alpha=alpha, beta=beta, c=added
    )  # fmt: skip
    return d.T if swap_ab else d


def _array(tensor: Any, dtype: str) -> np.ndarray:
    """A tensor as an array of its values or bits."""
    integer = {1: torch().int8, 2: torch().int16, 4: torch().int32, 8: torch().int64}[tensor.element_size()]
    return checked_array(tensor.contiguous().view(integer).cpu().numpy(), dtype, "a tensor")


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")
