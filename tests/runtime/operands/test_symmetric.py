"""Binding products that are symmetric by the caller's guarantee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.plain import bound
from tests.runtime.operands.test_operands import Array, carry_out, read

from gemmill.library.errors import OperandError

transposed = st.booleans()


def matrix(rows: int, columns: int, is_transposed: bool, batch: tuple[int, ...] = ()) -> Array:
    shape = (columns, rows) if is_transposed else (rows, columns)
    values = np.random.default_rng(0).integers(-8, 8, (*batch, *shape)).astype(np.float32)
    return values.swapaxes(-1, -2) if is_transposed else values


@given(transposed, transposed, transposed, st.sampled_from([(), (3,)]))
def test_c_and_d_are_bound_n_major(of_x: bool, of_c: bool, of_d: bool, batch: tuple[int, ...]) -> None:
    x, c, d = matrix(5, 3, of_x, batch), matrix(5, 5, of_c, batch), matrix(5, 5, of_d, batch)
    c += c.swapaxes(-1, -2).copy()
    gemm = bound(read(x), read(x.swapaxes(-1, -2)), read(d), read(c), symmetric=True)
    assert gemm.problem.symmetry == "symmetric"
    assert gemm.problem.d_major == gemm.problem.c_major == "n"
    assert gemm.problem.a_major == gemm.problem.b_major == ("mn" if of_x else "k")
    wanted = x @ x.swapaxes(-1, -2) + c
    owners = {"a": x, "b": x, "c": c, "d": d}
    carry_out(gemm, {name: array if array.base is None else array.base for name, array in owners.items()})
    assert np.array_equal(d, wanted)


def test_rows_of_a_batch_are_not_joined() -> None:
    x, shared = matrix(5, 3, False, (4,)), matrix(5, 3, False)
    gemm = bound(read(x), read(shared.T), read(matrix(5, 5, False, (4,))), symmetric=True)
    assert (gemm.problem.m, gemm.problem.batch) == (5, 4)


@pytest.mark.parametrize(
    ("b", "d", "options", "fault"),
    [
        (matrix(3, 4, False), matrix(5, 4, False), {}, "out has shape .5, 4.; it must have as many rows as columns"),
        (matrix(3, 5, False), matrix(5, 5, False), {"b": {"dtype": "tf32"}}, "a is f32 and b is tf32"),
    ],
)
def test_what_cannot_be_symmetric_is_refused(b: Array, d: Array, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(OperandError, match=f"symmetric is True, and {fault}"):
        bound(read(matrix(5, 3, False)), read(b, **options.get("b", {})), read(d), symmetric=True)


def test_c_that_broadcasts_must_be_symmetric_too() -> None:
    x, d = matrix(5, 3, False), matrix(5, 5, False)
    for c in (matrix(1, 5, False), matrix(5, 1, False), matrix(1, 5, False)[0]):
        with pytest.raises(OperandError, match=r"symmetric is True, and c has shape .*; it must be symmetric too"):
            bound(read(x), read(x.T), read(d), read(c), symmetric=True)
    assert bound(read(x), read(x.T), read(d), read(matrix(1, 1, False)), symmetric=True).c
