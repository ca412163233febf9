"""What ``gemmill.prepare`` refuses, and how calls read a prepared operand, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cases.plain import call_of
from tests.runtime.operands.test_operands import Array, read

import gemmill
from gemmill.library.epilogues.parse import PLAIN
from gemmill.library.errors import OperandError
from gemmill.runtime.api.prepared import _read, _split
from gemmill.runtime.launch.split import SplitOperand, split
from gemmill.runtime.operands.binding import _bind_matrices
from gemmill.runtime.operands.tensors import TensorView


def f32(*shape: int) -> Array:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("tensor", "precision", "message"),
    [
        (read(f32(3, 8, 8)), "f16x3", "b has shape (3, 8, 8); it must be (K, N), with at least 2 rows and columns"),
        (read(f32(8, 1)), "f16x3", "b has shape (8, 1); it must be (K, N)"),
        (read(f32(8, 8)[:, ::2]), "f16x3", "one extent must be contiguous"),
        (read(f32(8, 8), dtype="f16"), "f16x3", "b is f16; precision 'f16x3' is for f32"),
        (read(f32(8, 8)), "f16x9", "precision is 'f16x9'; it must be one of"),
    ],
)
def test_what_is_refused(tensor: TensorView, precision: str, message: str) -> None:
    with pytest.raises(OperandError) as refused:
        gemmill.prepare(tensor, precision=precision)  # type: ignore[arg-type]
    assert message in str(refused.value)


@pytest.mark.parametrize("precision", ["bf16x9", "bf16x3", "f16x3"])
@pytest.mark.parametrize("turned", [False, True])
def test_calls_find_components_where_they_were_written(precision: str, turned: bool) -> None:
    w = f32(70, 130).T if turned else f32(130, 70)
    view, a, out = read(w), read(f32(40, 130)), read(f32(40, 70))
    steps, seen = _split(_read(view, precision), view, precision)
    written = steps[-1][1]
    assert isinstance(written, SplitOperand)
    call = call_of(a, replace(seen, ptr=1 << 40), out)
    gemm = _bind_matrices(call, call.tensors, PLAIN, may_stack=False)
    assert (gemm.problem.a_dtype, gemm.problem.b_dtype, gemm.is_prepared) == (precision, precision, True)
    there, parts = split(gemm, 0)
    assert [part.name for part in parts] == ["a"]
    assert there.b.ptr == 1 << 40
    assert there.b.stride * 2 == written.row_bytes
    assert there.b.component_stride == there.b.stride * written.rows
    assert there.b.magnitudes == (steps[0][1].offset if precision == "f16x3" else None)
    assert there.transposed.a == there.b.transposed
    swapped, parts = split(gemm.transposed, 0)
    assert [part.name for part in parts] == ["b"]
    assert swapped.a.magnitudes == there.b.magnitudes


def test_precisions_must_agree() -> None:
    seen = replace(read(f32(64, 64)), dtype="f16x3")
    for tensors, precision, message in (
        ((read(f32(64, 64)), seen), "bf16x6", "b was prepared with precision 'f16x3', and the call has 'bf16x6'"),
        ((seen, read(f32(64, 64))), "ieee", "only b can be one"),
    ):
        call = call_of(*tensors, read(f32(64, 64)), precision=precision)
        with pytest.raises(OperandError, match=message):
            _ = call.bound
