"""The problems that the oracle supports, and random operands for them."""

from __future__ import annotations

import numpy as np

from gemmill.library.arithmetic import Arithmetic
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.oracle.elements import ARRAYS, rounded
from gemmill.library.oracle.epilogue import fault_of_epilogue
from gemmill.library.oracle.oracle import fault_of_types
from gemmill.library.problem import GemmProblem

_BATCHINGS = ("strided", "grouped", "masked", "kgrouped", "array")


def check_supported(problem: GemmProblem, arithmetic: Arithmetic) -> None:
    """Check that the oracle computes a problem with an arithmetic.

    Raises:
        UnsupportedProblemError: it does not; says why.
    """
    fault = fault_of_types(arithmetic, (problem.a_dtype, problem.b_dtype))
    if fault_of_d := fault_of_epilogue(parse(problem.epilogue)):
        fault = fault_of_d
    elif problem.a_scale != "none" or problem.b_scale != "none":
        fault = "scales of A or B"
    elif problem.batching not in _BATCHINGS:
        fault = f"the batching {problem.batching}"
    elif problem.rows != "stored":
        fault = f"{problem.rows} rows"
    elif problem.d_dtype not in ARRAYS or problem.d_dtype == "tf32":
        fault = f"D in {problem.d_dtype}"
    elif problem.c_dtype not in (None, problem.d_dtype):
        fault = f"C in {problem.c_dtype} with D in {problem.d_dtype}"
    elif problem.d_dtype == "s32" and arithmetic.step != "exact":
        fault = f"D in {problem.d_dtype} of sums by {arithmetic}"
    if fault:
        raise UnsupportedProblemError(f"the oracle does not support {fault}")


def random_matrix(rows: int, columns: int, dtype: DTypeName, draw: np.random.Generator) -> np.ndarray:
    """Standard normal floats, rounded to a type, or uniform integers. Equal generators give equal bits."""
    row = DTYPES[dtype]
    if row.is_integer:
        return draw.integers(int(row.least), int(row.largest), (rows, columns), dtype=ARRAYS[dtype], endpoint=True)
    drawn = draw.standard_normal((rows, columns))
    return rounded(drawn, "f64" if dtype == "f64" else "f32" if dtype == "tf32" else dtype)
