"""Sizes of groups: what people write, and what comes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.errors import ProblemError
from gemmill.library.input.group_sizes import as_full, checked_sizes, flops_of, sizes_of
from gemmill.library.problem import GemmProblem
from gemmill.library.records import measurement_key

GROUPED = GemmProblem(100, 64, 32, batching="grouped", groups=8)
MASKED = GemmProblem(100, 64, 32, batching="masked", groups=4)


def test_balanced_groups_are_as_equal_as_they_can_be_and_slots_full() -> None:
    assert sizes_of(GROUPED) == (13, 13, 13, 13, 12, 12, 12, 12)
    assert sizes_of(MASKED) == (100,) * 4
    assert sizes_of(GemmProblem(8, 64, 6, batching="kgrouped", groups=4)) == (2, 2, 1, 1)
    assert sizes_of(GROUPED.transposed) == sizes_of(GROUPED)
    assert sizes_of(MASKED.transposed) == sizes_of(MASKED)
    assert sizes_of(GemmProblem(8, 64, 6, batch=4)) == ()


def test_zipf_is_the_same_every_time_whoever_draws() -> None:
    assert sizes_of(GROUPED, "zipf:1.1") == (9, 4, 5, 12, 7, 18, 5, 40)
    assert sizes_of(MASKED, "zipf:1") == (25, 33, 50, 100)


@given(st.integers(0, 5000), st.integers(1, 300), st.floats(0, 10))
def test_zipf_leaves_no_row_out(rows: int, groups: int, exponent: float) -> None:
    problem = GemmProblem(rows, 8, 8, batching="grouped", groups=groups)
    sizes = sizes_of(problem, checked_sizes(problem, f"zipf:{exponent:.3f}"))
    assert sum(sizes) == rows
    assert min(sizes) >= 0


def test_rates_count_what_is_multiplied() -> None:
    assert flops_of(GROUPED, "zipf:2") == GROUPED.flops == 2 * 100 * 64 * 32
    assert flops_of(MASKED, "10,0,3,0") == 2 * 13 * 64 * 32
    assert flops_of(MASKED.transposed, "10,0,3,0") == flops_of(MASKED, "10,0,3,0")
    assert as_full(MASKED.transposed, "10,0,3,0") == as_full(MASKED, "10,0,3,0").transposed
    full = as_full(MASKED.but(expected_rows=90), "10,0,3,0")
    assert (full.m, full.typical().m) == (4, 4)
    assert as_full(MASKED.but(m=1000)).typical().m == 1000, "not what is assumed of slots"
    assert as_full(GROUPED, "zipf:2") is GROUPED


@pytest.mark.parametrize(
    ("problem", "said", "says"),
    [
        (GROUPED, "even", "sizes is 'even'; it must be balanced, zipf:S such as zipf:1.1, or"),
        (GROUPED, "zipf:-1", "sizes is 'zipf:-1'; it must be"),
        (GROUPED, "zipf:11", "the exponent of zipf must be at most 10"),
        (GROUPED, "50,50", "sizes has 2 numbers, but 100x64x32 bf16 tn grouped=8 has 8 groups"),
        (GROUPED, [12] * 8, "sizes add up to 96; they must add up to m = 100"),
        (GROUPED, [12, "x"], "it must be balanced"),
        (MASKED, "101,0,0,0", "sizes contains 101; a masked group of .* has at most m = 100 rows"),
        (MASKED.transposed, "101,0,0,0", "a masked group of .* has at most n = 100 columns"),
        (GROUPED.transposed, [12] * 8, "sizes add up to 96; they must add up to n = 100"),
        (GemmProblem(8, 8, 8, batch=2), "balanced", "has no groups; omit sizes"),
    ],
)
def test_what_cannot_be_says_why(problem: GemmProblem, said: object, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        checked_sizes(problem, said)  # type: ignore[arg-type]


def test_sizes_have_one_spelling() -> None:
    assert checked_sizes(GROUPED, None) == "balanced"
    assert checked_sizes(GROUPED, "zipf:1.10") == "zipf:1.1"
    assert checked_sizes(MASKED, [1, 2, 3, 4]) == "1,2,3,4"
    assert checked_sizes(GemmProblem(8, 8, 8), None) == ""


def test_only_other_sizes_than_balanced_make_another_measurement() -> None:
    keys = [measurement_key("d", GROUPED, "GPU", sizes=sizes) for sizes in ("", "balanced", "zipf:1.1")]
    assert keys[0] == keys[1] != keys[2]
