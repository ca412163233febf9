"""Verification on the CPU: torch is needed, a GPU is not."""

from dataclasses import replace
from typing import Any

import pytest

from gemmill.library.problem import GemmProblem
from gemmill.profiler.operands import OperandSet, make_operands, set_bytes, set_count
from gemmill.profiler.verify import half_ulp, reference

torch = pytest.importorskip("torch")

PROBLEM = GemmProblem(72, 40, 512, 1, "bf16", "k", "bf16", "mn", "f32", "bf16", "n")
FORMATS = [
    PROBLEM,
    replace(PROBLEM, d_dtype="f32"),
    replace(PROBLEM, k=8),
    replace(PROBLEM, k=4096, d_major="m"),
    replace(PROBLEM, batch=3, a_major="mn", b_major="k"),
    replace(PROBLEM, a_dtype="f16", b_dtype="f16", d_dtype="f16", c_dtype="f16", c_major="m"),
]


def solve(operands: OperandSet, alpha: float, beta: float) -> None:
    """Computes D as a kernel would: f32 sums, one rounding to D's format."""
    result = alpha * (operands.a.float() @ operands.b.float())
    if operands.c is not None:
        result += beta * operands.c.float()
    operands.d.copy_(result)


def place(operands: OperandSet) -> tuple[int, ...]:
    """Indices of an element of the last matrix."""
    return (*(extent - 1 for extent in operands.d.shape[:-2]), 7, 3)


@pytest.mark.parametrize("problem", FORMATS, ids=str)
def test_operands_have_the_strides_that_the_majors_name(problem: GemmProblem) -> None:
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    shapes: dict[str, tuple[int, int, bool]] = {
        "a": (problem.m, problem.k, problem.a_major == "k"),
        "b": (problem.k, problem.n, problem.b_major == "mn"),
        "d": (problem.m, problem.n, problem.d_major == "n"),
    }
    for name, (rows, columns, row_major) in shapes.items():
        tensor: Any = getattr(operands, name)
        assert tuple(tensor.shape) == ((problem.batch,) if problem.batch > 1 else ()) + (rows, columns)
        assert tensor.stride()[-2:] == ((columns, 1) if row_major else (1, rows))


def test_operands_are_random_and_differ_from_set_to_set() -> None:
    first, second = make_operands(PROBLEM, 1, "cpu", sets=2)
    assert not torch.equal(first.a, second.a)
    assert 0.9 < float(first.a.float().std()) < 1.1
    assert torch.equal(first.a, make_operands(PROBLEM, 1, "cpu", sets=1)[0].a)


@pytest.mark.parametrize("extent", [64, 1000, 4096, 16384])
def test_the_sets_together_exceed_twice_any_l2(extent: int) -> None:
    problem = replace(PROBLEM, m=extent, n=extent, k=extent)
    sets = set_count(problem)
    assert sets >= 2
    assert sets * set_bytes(problem) > 2 * (60 << 20) or sets == 1024


@pytest.mark.parametrize("problem", FORMATS, ids=str)
def test_a_right_result_passes_and_an_unwritten_one_fails(problem: GemmProblem) -> None:
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    expected = reference(problem, operands, 0.5, 2.0)
    verdict = expected.compare(operands.d)
    assert not verdict.passed
    assert "nan" in verdict.says
    solve(operands, 0.5, 2.0)
    verdict = expected.compare(operands.d)
    assert verdict.passed, verdict.says
    # The bound is not slack: rounding to a 16-bit D uses most of it.
    assert verdict.error > 0.5 or problem.d_dtype == "f32"


@pytest.mark.parametrize("problem", FORMATS, ids=str)
def test_one_missing_product_fails(problem: GemmProblem) -> None:
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    where = place(operands)
    expected = reference(problem, operands, 1.0, 1.0)
    solve(operands, 1.0, 1.0)
    operands.d[where] -= 1.0  # a product of two elements of ordinary size
    verdict = expected.compare(operands.d)
    assert f"1 of {operands.d.numel()} elements" in verdict.says
    assert f"[{where[-2]}, {where[-1]}] is" in verdict.says


def test_the_worst_element_is_found_in_any_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmill.profiler.verify.CHUNK", 3 * PROBLEM.n)
    operands = make_operands(PROBLEM, 1, "cpu", sets=1)[0]
    expected = reference(PROBLEM, operands, 1.0, 0.0)
    solve(operands, 1.0, 0.0)
    assert expected.compare(operands.d).passed
    operands.d[70, 39] += 100
    verdict = expected.compare(operands.d)
    assert "1 of 2880 elements" in verdict.says
    assert "D[70, 39]" in verdict.says


@pytest.mark.parametrize(
    ("dtype", "magnitude", "expected"),
    [
        ("bf16", 1.0, 2.0**-8),
        ("bf16", 1.99, 2.0**-8),
        ("bf16", 2.0, 2.0**-7),
        ("f16", 1.0, 2.0**-11),
        ("f32", 4.0, 2.0**-22),
    ],
)
def test_half_an_ulp_is_that_of_the_binade(dtype: str, magnitude: float, expected: float) -> None:
    assert float(half_ulp(torch.tensor([magnitude], dtype=torch.float64), dtype)[0]) == expected
