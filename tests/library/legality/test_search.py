"""Search of the legal space."""

from __future__ import annotations

import itertools
import random

import pytest

from gemmill.library.config.fields import Value, config_of
from gemmill.library.dtypes import FP8
from gemmill.library.legality.rules import DOMAINS, legal
from gemmill.library.legality.search import any_legal, draw_legal, legal_values, obstacle


def test_draws_are_legal_repeat_with_the_seed_and_keep_what_is_given() -> None:
    fixed: dict[str, Value] = {"a.dtype": "e4m3", "schedule": "pingpong"}
    draws = [[draw_legal(random.Random(seed), fixed) for seed in range(40)] for _ in range(2)]
    assert draws[0] == draws[1]
    found = [fields for fields in draws[0] if fields is not None]
    assert len(found) == 40
    assert len({config_of(fields) for fields in found}) == 40
    for fields in found:
        assert legal(fields)
        assert fixed.items() <= fields.items()
    assert {fields["b.dtype"] for fields in found} >= set(FP8)
    assert {fields["c.dtype"] == "none" for fields in found} == {True, False}


FP8_SUMS: dict[str, Value] = {"schedule": "cooperative", "a.dtype": "e4m3", "b.dtype": "e4m3", "accumulator": "f32"}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"accumulator": "s32"}, "mma-types"),
        ({"a.scale": "1x128", "b.scale": "none"}, "block-scales"),
        ({"promote": 4, "tile.k": 64}, "promotion"),
        pytest.param(
            {"stages": 16, "tile.n": 256, "tile.m": 128, "tile.k": 128}, "shared-memory", marks=pytest.mark.heavy
        ),
    ],
)
def test_an_obstacle_is_the_rule_without_which_a_config_would_exist(changes: dict[str, Value], rule: str) -> None:
    assert obstacle(FP8_SUMS) is None
    found = obstacle(FP8_SUMS | changes)
    assert found is not None
    assert found.id == rule
    assert any_legal(FP8_SUMS | changes) is None


@pytest.mark.parametrize("schedule", ["cooperative", "simt"])
def test_legal_values_are_those_that_a_search_for_each_finds(schedule: str) -> None:
    fixed: dict[str, Value] = {"schedule": schedule, "b.dtype": "f16"}
    names = ("a.dtype", "a.major", "d.dtype")
    each = itertools.product(*map(DOMAINS.__getitem__, names))
    found = [values for values in each if any_legal(fixed | dict(zip(names, values, strict=True))) is not None]
    assert [*legal_values(names, fixed)] == found
    assert len(found) > 5
