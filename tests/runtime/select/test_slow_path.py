"""Slow paths: what makes a problem slow without need is named, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.slow_path import MUCH


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(gpu="H200")


SLOW: list[tuple[dict[str, Any], str]] = [
    ({"a": "bf16", "b": "f16"}, "convert b to bf16, so that a and b have the same dtype"),
    (
        {"a": "f16", "b": "bf16", "b_align": 2},
        "convert b to f16, so that a and b have the same dtype; align b to 16 bytes",
    ),
    ({"a_major": "any"}, "make a contiguous along K"),
    ({"d_major": "any"}, "make out contiguous along N"),
    ({"a": "e4m3", "a_major": "mn", "b_major": "mn", "m": 64}, "make a and b contiguous along K"),
    # Measured: 160 us, where one of them is K-major 108 and 110, where both are 98.
    ({"a": "e4m3", "a_major": "mn", "b_major": "mn"}, "make a and b contiguous along K"),
    ({"m": 1, "k": 4097}, "align b to 16 bytes"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "advice"), SLOW, ids=lambda x: str(x))
def test_what_makes_a_problem_slow_is_named(registry: Registry, words: dict[str, Any], advice: str) -> None:
    problem = GemmProblem(**{"m": 4096, "n": 4096, "k": 4096} | words)
    choice = registry.select(problem)
    path = choice.slow_path
    assert path is not None
    assert path.factor > MUCH
    assert path.advice.startswith(advice)
    assert choice.why == f"{choice.reason}; {path}"
    assert f"predicted {path.factor:.1f}x slower than" in repr(choice)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [{}, {"a_align": 2}, {"b_major": "mn"}, {"a": "f32"}, {"a": "e4m3", "b_major": "mn"}, {"k": 0}],
    ids=str,
)
def test_of_what_is_as_fast_as_it_can_be_nothing_is_said(registry: Registry, words: dict[str, Any]) -> None:
    choice = registry.select(GemmProblem(**{"m": 4096, "n": 4096, "k": 4096} | words))
    assert choice.slow_path is None
    assert choice.why == choice.reason


def test_what_bits_cost_is_said(registry: Registry) -> None:
    small, large = GemmProblem(m=16, n=512, k=16384), GemmProblem(m=16, n=4096, k=4096)
    path = registry.select(small, bits="k16").slow_path
    assert path is not None
    assert path.advice == "leave out bits"
    assert registry.select(large, bits="k16").slow_path is None
    path = registry.select(GemmProblem(m=4096, n=4096, k=4096, b="f16"), bits="invariant").slow_path
    assert path is not None
    assert path.advice == "convert b to bf16, so that a and b have the same dtype"
    assert registry.select(small).slow_path is None


def test_the_transpose_is_spoken_of_as_the_caller_has_it(registry: Registry) -> None:
    path = registry.select(GemmProblem(m=4096, n=4096, k=4096, a_major="any")).slow_path
    assert path is not None
    assert path.transposed.advice == "make b contiguous along K"
    assert path.transposed.transposed == path
