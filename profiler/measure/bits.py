"""Comparison of D with the oracle, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmill.library.arithmetic import Arithmetic
from gemmill.library.epilogues.parse import parse
from gemmill.library.oracle.elements import checked_array
from gemmill.library.oracle.oracle import oracle_of
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.fused import operand_of
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
    wrong, first = 0, ""
    for part in parts(problem, operands):
        expected = _bits(_expected(problem, part, operands, arithmetic, swap_ab))
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


def _expected(
    problem: GemmProblem, part: Part, operands: OperandSet, arithmetic: Arithmetic, is_transposed: bool
) -> np.ndarray:
    inputs: dict[str, Any] = dict(zip(("alpha", "beta"), factors(problem), strict=True))
    inputs |= {"a": _array(part.a, problem.a_dtype), "b": _array(part.b, problem.b_dtype)}
    if operands.c is not None:
        matrix = operands.c[part.at if len(operands.c) > 1 else 0] if operands.c.dim() == 3 else operands.c
        inputs["c"] = _array(matrix[part.rows], problem.d_dtype)
    for x in parse(problem.epilogue).operands:
        inputs[x.name] = _array(operand_of(x, operands.arguments[x.name], part, part.rows), x.dtype)
    return oracle_of(problem, arithmetic, inputs, is_transposed=is_transposed)


def _array(tensor: Any, dtype: str) -> np.ndarray:
    """A tensor as an array of its values or bits."""
    integer = {1: torch().int8, 2: torch().int16, 4: torch().int32, 8: torch().int64}[tensor.element_size()]
    return checked_array(tensor.contiguous().view(integer).cpu().numpy(), dtype, "a tensor")


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")
