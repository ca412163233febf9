"""Kernels that a pack needs for given problems."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gemmill.runtime.select.set_cover import regrets, set_cover

TIMES = st.dictionaries(
    st.integers(0, 9),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(1, 4), min_size=1),
    max_size=8,
)


@given(TIMES, st.sampled_from([0.0, 0.03, 0.5, 2.0]))
def test_every_problem_is_served_within_the_bound_by_few_kernels(
    times: dict[int, dict[str, float]], regret: float
) -> None:
    chosen = set_cover(times, dict.fromkeys(times, regret))
    assert len(set(chosen)) == len(chosen)
    assert all(loss is not None and loss <= regret + 1e-9 for loss in regrets(times, chosen).values())
    fewest = next(
        count
        for count in itertools.count()
        for some in itertools.combinations("abcdef", count)
        if all(loss is not None and loss <= regret for loss in regrets(times, some).values())
    )
    assert len(chosen) <= fewest * (1 + sum(1 / i for i in range(2, len(times) + 1)))


def test_the_widest_comes_first_and_of_equals_the_faster() -> None:
    times = {
        "large": {"x": 1.0, "y": 1.02, "z": 1.01},
        "wide": {"x": 2.0, "y": 1.0, "z": 1.0},
        "small": {"w": 1.0, "y": 9.0},
    }
    assert set_cover(times, dict.fromkeys(times, 0.03)) == ["z", "w"]
    assert set_cover(times, dict.fromkeys(times, 0)) == ["w", "x", "y"]
    assert set_cover(times, {"large": 0, "wide": 1, "small": 8}) == ["x", "w"]
    assert regrets(times, ["z"]) == {"large": 1.01 - 1, "wide": 0, "small": None}
    assert set_cover({}, {}) == []


@given(TIMES, st.dictionaries(st.integers(0, 9), st.integers(1, 1 << 62)))
def test_weights_say_what_comes_first_and_not_how_many(
    times: dict[int, dict[str, float]], weights: dict[int, float]
) -> None:
    allowed = dict.fromkeys(times, 0.03)
    plain, weighed = set_cover(times, allowed), set_cover(times, allowed, weights)
    assert {*weighed} <= {*plain}
    assert all(loss is not None and loss <= 0.03 + 1e-9 for loss in regrets(times, weighed).values())


def test_what_runs_most_comes_first() -> None:
    times = {"a": {"x": 1.0}, "b": {"x": 1.0}, "c": {"y": 1.0}, "d": {"z": 1.0}}
    exactly = dict.fromkeys(times, 0)
    assert set_cover(times, exactly) == ["x", "y", "z"]
    assert set_cover(times, exactly, {"d": 100, "c": 3}) == ["z", "y", "x"]


def test_what_others_replace_is_left_out() -> None:
    times = {1: "ax", 2: "ay", 3: "ax", 4: "ay", 5: "x", 6: "y"}  # greedy takes a first
    assert set_cover({p: dict.fromkeys(k, 1.0) for p, k in times.items()}, dict.fromkeys(times, 0)) == ["x", "y"]
