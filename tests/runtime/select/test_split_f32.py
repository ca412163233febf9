"""The choice of kernels for f32 as products of components of 16 bits, by the model of an H200."""

from __future__ import annotations

import pytest

from gemmill.library.bits import required_arithmetic
from gemmill.library.dtypes import DTYPES, SPLIT
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.slow
registry = Registry(gpu="H200")


@pytest.mark.parametrize("dtype", SPLIT)
@pytest.mark.parametrize("majors", ["tn", "nn", "nt", "tt"])
def test_large_products_are_split(dtype: str, majors: str) -> None:
    choice = registry.select(GemmProblem.from_text(f"8192x8192x8192 {dtype} {majors}"))
    assert (choice.config.a.dtype, choice.config.promote) == (dtype, 2)
    row = DTYPES[dtype]
    assert f"A and B are split into {row.components} components of {row.component}" in choice.why
    if len(row.terms) == 3:  # tiles with two batches of MMAs a stage were 13% slower
        assert choice.config.tile.m * choice.config.tile.n == 128 * 256


def test_fewer_products_take_less_time() -> None:
    dtypes = "f32", "bf16x9", "bf16x6", "f16x3", "bf16x3"  # f16x3 reads the operands twice
    times = [registry.select(GemmProblem(m=4096, n=4096, k=4096, a=x)).predicted_us for x in dtypes]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.9 * times[2]


@pytest.mark.parametrize("words", [{"d": "bf16"}, {"c": "f32"}, {"batch": 3}, {"a_align": 4, "b_align": 4}])
def test_other_outputs_batches_and_alignments_are_split_too(words: dict[str, object]) -> None:
    assert registry.select(GemmProblem(m=2048, n=2048, k=2048, a="bf16x6", **words)).config.a.dtype == "bf16x6"


@pytest.mark.parametrize("majors", ["tn", "tt"])
def test_groups_of_rows_are_split(majors: str) -> None:
    problem = GemmProblem.from_text(f"4096x2048x1024 f16x3 {majors} grouped=8")
    choice = registry.select(problem)
    assert (choice.config.a.dtype, choice.config.scheduler.batching) == ("f16x3", "grouped")
    ungrouped = registry.select(problem.but(batching="strided", batch=1))
    assert choice.predicted_us > ungrouped.predicted_us  # B of each group is split too


@pytest.mark.parametrize(
    ("problem", "sm_count"),
    [
        (GemmProblem(m=8, n=32768, k=512, a="bf16x6"), None),
        (GemmProblem(m=2048, n=2048, k=2048, a="bf16x6", a_major="any", a_align=4), None),
        (GemmProblem(m=2048, n=2048, k=2048, a="bf16x6"), 64),
    ],
)
def test_others_are_multiplied_in_f32(problem: GemmProblem, sm_count: int | None) -> None:
    choice = registry.select(problem, sm_count)
    assert choice.config.a.dtype == "f32"
    assert choice.problem == problem
    assert "it multiplies f32 as it is" in choice.why


def test_bits_name_the_sums_of_components() -> None:
    problem = GemmProblem(m=1, n=8192, k=8192, a="bf16x6")
    assert str(registry.select(problem, bits="invariant").config.a.dtype) == "bf16x6"
    assert str(required_arithmetic("invariant", problem)) == "k16p2"
    with pytest.raises(UnsupportedProblemError, match="how cuBLAS sums is not known"):
        registry.select(problem, bits="cublas")
    with pytest.raises(UnsupportedProblemError):
        registry.select(GemmProblem(m=8, n=8, k=64, batch=4, a="bf16x6", batching="masked"))
