"""Kernels whose launch says in how many slices K goes: one cubin, a name for each number."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.emitters.emit import emit, facts
from gemmill.library.config.edited import edited_name
from gemmill.library.config.names import kernel_name, parse_name
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
from gemmill.library.decompositions.workspace import partial_matrices, reduction_ctas, with_splits, workspace_size
from gemmill.library.launch import LaunchSpec
from gemmill.library.problem import GemmProblem
from gemmill.runtime.launch.grid import grid_ctas

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n2_128x64x64_1x1_cooperative_s8_m8_k{}_linear"
OPEN = NAME.format("1anysplit")
FIXED = parse_name(NAME.format("4split"))


@given(st.integers(1, MAX_SPLITS))
def test_every_number_has_a_name_and_one_cubin(splits: int) -> None:
    name = NAME.format(f"{splits}anysplit")
    config = parse_name(name)
    assert config.scheduler.splits == splits
    assert compiled(config) == parse_name(OPEN)
    assert with_number(parse_name(OPEN), splits) == config
    assert compiled_name(name) == OPEN
    assert compiled_name(edited_name(name, "ab" * 32)) == edited_name(OPEN, "ab" * 32)
    assert is_open(config) == (splits == 1)


def test_others_are_compiled_as_they_are() -> None:
    assert compiled(FIXED) is FIXED
    for name in (kernel_name(FIXED), "cublas", "", "k4anysplit", NAME.format("4anysplits")):
        assert compiled_name(name) == name
        assert not says_number(name)
    assert says_number(OPEN)


def test_what_is_declared_for_any_number_is_launched_with_each() -> None:
    given = {kernel_name(config): config for config in (FIXED, parse_name(OPEN), parse_name(NAME.format("5anysplit")))}
    found = numbered(given)
    assert [*found] == [
        kernel_name(FIXED),
        *(NAME.format(f"{splits}anysplit") for splits in NUMBERS),
        NAME.format("5anysplit"),
    ]
    assert all(kernel_name(config) == name for name, config in found.items())
    assert numbered(found) == found
    assert [*numbered({kernel_name(FIXED): FIXED}).values()] == [FIXED]


def test_numbers_are_close_enough_and_within_what_kernels_take() -> None:
    assert NUMBERS[0] == 2
    assert NUMBERS[-1] == MAX_SPLITS
    assert all(more <= 1.5 * fewer for fewer, more in pairwise(NUMBERS))


@pytest.mark.parametrize("splits", [1, 2, 8, 9, 17, 33, 256])
def test_only_the_launch_facts_tell_numbers_apart(splits: int) -> None:
    config = parse_name(NAME.format(f"{splits}anysplit"))
    one, own = emit(parse_name(OPEN)), emit(config)
    assert (own.text, own.entry, own.constants) == (one.text, one.entry, one.constants)
    assert facts(config) == (own.launch, own.constants)
    shared = one.launch.k_decomposition
    assert shared
    assert own.launch.k_decomposition == with_splits(shared, splits)
    assert LaunchSpec.of(asdict(own.launch)) == own.launch


EXTENTS = st.integers(1, 3000)


@given(EXTENTS, EXTENTS, EXTENTS, st.integers(1, 3), st.integers(2, MAX_SPLITS), st.sampled_from(("n", "m")))
def test_a_launch_is_as_large_as_that_of_a_kernel_for_its_number(
    m: int, n: int, k: int, batch: int, splits: int, major: Literal["n", "m"]
) -> None:
    problem = GemmProblem(m, n, k, batch, "bf16", "k", "bf16", "k", "f32", "bf16", major, d_align=2)
    either = [facts(parse_name(NAME.format(f"{splits}{how}")))[0] for how in ("split", "anysplit")]
    fixed, launched = (
        (
            grid := grid_ctas(spec, problem, 132),
            workspace_size(spec, problem, grid),
            reduction_ctas(spec, problem),
            spec.k_decomposition and partial_matrices(spec.k_decomposition, problem),
        )
        for spec in either
    )
    assert launched == fixed
