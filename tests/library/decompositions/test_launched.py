"""Kernels whose launch says in how many slices K goes: one cubin, a name for each number."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.emitters.emit import emit, facts
from gemmill.library.config.edited import edited_name
from gemmill.library.config.names import is_former, kernel_name, parse_name, present_name
from gemmill.library.decompositions.decomposition import MAX_SPLITS
from gemmill.library.decompositions.launched import (
    NUMBERS,
    compiled,
    compiled_name,
    is_open,
    numbered,
    says_number,
    with_number,
)
from gemmill.library.decompositions.workspace import with_splits
from gemmill.library.errors import RenamedWarning
from gemmill.library.input.strict_json import made
from gemmill.library.launch import LaunchSpec

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n2_128x64x64_1x1_cooperative_s8_m8_{}_linear"
OPEN = NAME.format("splitk")
FIXED = parse_name(NAME.format("k1stream"))


@given(st.integers(2, MAX_SPLITS))
def test_every_number_has_a_name_and_one_cubin(splits: int) -> None:
    name = NAME.format(f"k{splits}splitk")
    config = parse_name(name)
    assert config.scheduler.splits == splits
    assert compiled(config) == parse_name(OPEN)
    assert with_number(parse_name(OPEN), splits) == config
    assert compiled_name(name) == OPEN
    assert compiled_name(edited_name(name, "ab" * 32)) == edited_name(OPEN, "ab" * 32)
    assert is_open(parse_name(OPEN))
    assert not is_open(config)


def test_others_are_compiled_as_they_are() -> None:
    assert compiled(FIXED) is FIXED
    for name in (kernel_name(FIXED), "cublas", "", "k4splitk", NAME.format("k4splitks")):
        assert compiled_name(name) == name
        assert not says_number(name)
    assert says_number(OPEN)


def test_what_is_declared_for_any_number_is_launched_with_each() -> None:
    given = {kernel_name(config): config for config in (FIXED, parse_name(OPEN), parse_name(NAME.format("k5splitk")))}
    found = numbered(given)
    assert [*found] == [
        kernel_name(FIXED),
        *(NAME.format(f"k{splits}splitk") for splits in NUMBERS),
        NAME.format("k5splitk"),
    ]
    assert all(kernel_name(config) == name for name, config in found.items())
    assert numbered(found) == found
    assert [*numbered({kernel_name(FIXED): FIXED}).values()] == [FIXED]


def test_numbers_are_close_enough_and_within_what_kernels_take() -> None:
    assert NUMBERS[0] == 2
    assert NUMBERS[-1] == MAX_SPLITS
    assert all(more <= 1.5 * fewer for fewer, more in pairwise(NUMBERS))


@pytest.mark.parametrize("splits", [2, 8, 9, 17, 33, 256])
def test_only_the_launch_facts_tell_numbers_apart(splits: int) -> None:
    config = parse_name(NAME.format(f"k{splits}splitk"))
    one, own = emit(parse_name(OPEN)), emit(config)
    assert (own.text, own.entry, own.constants) == (one.text, one.entry, one.constants)
    assert facts(config) == (own.launch, own.constants)
    shared = one.launch.k_decomposition
    assert shared
    assert own.launch.k_decomposition == with_splits(shared, splits)
    assert made("launch", json.loads(json.dumps(asdict(own.launch))), LaunchSpec) == own.launch


@pytest.mark.parametrize(
    ("former", "present"), [("k4split", "k4splitk"), ("k3fused", "k3splitk"), ("k1anysplit", "splitk")]
)
def test_a_former_name_is_of_the_kernel_that_replaced_its_own(former: str, present: str) -> None:
    assert is_former(NAME.format(former))
    assert not is_former(NAME.format(present))
    with pytest.warns(RenamedWarning, match=r"kernels are replaced by splitk ones, .* former name is still read"):
        assert present_name(NAME.format(former)) == NAME.format(present)
    parse_name.cache_clear()
    with pytest.warns(RenamedWarning):
        assert kernel_name(parse_name(NAME.format(former))) == NAME.format(present)
