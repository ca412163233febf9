"""Kernels and the slices of K of their launches."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gemmill.emitters.emit import emit
from gemmill.library.config.names import is_former, kernel_name, parse_name, present_name
from gemmill.library.decompositions.decomposition import MAX_SLICES
from gemmill.library.decompositions.sliced_kernel import SLICES, SlicedKernel, check_slices, in_each_number
from gemmill.library.decompositions.workspace_layout import in_slices, workspace_size
from gemmill.library.errors import ConfigError, RenamedWarning
from gemmill.library.legality.rules import broken
from gemmill.library.problem import GemmProblem
from gemmill.runtime.launch.launcher import grid_ctas

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n2_128x64x64_1x1_cooperative_s8_m8_{}_linear"
SPLIT_K = NAME.format("splitk")
STREAM_K = NAME.format("k1stream")
SERIAL, TREE = NAME.format("serial"), NAME.format("tree")


def test_numbers_are_close_enough_and_within_what_kernels_take() -> None:
    assert SLICES[0] == 2
    assert SLICES[-1] == MAX_SLICES
    assert all(more <= 1.5 * fewer for fewer, more in pairwise(SLICES))
    assert in_each_number(SPLIT_K, parse_name(SPLIT_K)) == [(SPLIT_K, slices) for slices in SLICES]
    assert in_each_number(STREAM_K, parse_name(STREAM_K)) == [(STREAM_K, 1)]
    assert in_each_number(SERIAL, parse_name(SERIAL)) == [(SERIAL, slices) for slices in (2, 3, 4, 6, 8)]
    assert in_each_number(TREE, parse_name(TREE)) == [(TREE, slices) for slices in (2, 4, 8)]


def test_kernels_take_slices_as_they_are() -> None:
    kernels = (SPLIT_K, 1), (SPLIT_K, 37), (SPLIT_K, MAX_SLICES), (STREAM_K, 1), (SERIAL, 1), (SERIAL, 8), (TREE, 8)
    for name, slices in kernels:
        check_slices(parse_name(name), slices)
    for name, slices, says in (
        (SPLIT_K, 257, "slices is 257 for .*_splitk_linear; it must be from 1 to 256"),
        (SPLIT_K, 0, "slices is 0 for .*_splitk_linear; it must be from 1 to 256"),
        (SERIAL, 9, "slices is 9 for .*_serial_linear; it must be from 1 to 8"),
        (TREE, 3, "slices is 3 for .*_tree_linear; it must be 1, 2, 4 or 8"),
        (STREAM_K, 2, "slices is 2 for .*_k1stream_linear; omit slices, or use a split-K kernel"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_slices(parse_name(name), slices)


@pytest.mark.parametrize("slices", [2, 8, 9, 17, 33, 256])
def test_slices_change_the_launch_facts_of_split_k_alone(slices: int) -> None:
    launch = in_slices(emit(parse_name(SPLIT_K)).launch, slices)
    shared = launch.k_decomposition
    assert shared
    assert shared.splits == slices
    assert in_slices(launch, 1) == emit(parse_name(SPLIT_K)).launch
    other = emit(parse_name(STREAM_K.replace("n2_", "n16_"))).launch
    assert in_slices(other, slices) is other


def test_the_launch_of_serial_split_k_sets_its_slices_without_a_workspace() -> None:
    launch = in_slices(emit(parse_name(SERIAL.replace("n2_", "n16_"))).launch, 3)
    assert launch.k_decomposition
    assert (launch.k_decomposition.splits, launch.k_decomposition.reduction) == (3, None)
    assert "splits" in launch.offsets
    assert not launch.has_workspace
    assert workspace_size(launch, GemmProblem(m=512, n=512, k=4096), 66) == (0, 0)
    assert grid_ctas(launch, GemmProblem(m=512, n=512, k=4096), 132) == 4 * 8


@pytest.mark.parametrize("word", ["serial", "tree"])
def test_a_name_has_no_number_of_slices_that_the_launch_sets(word: str) -> None:
    with pytest.raises(ConfigError, match=f"splits is 'k1{word}'"):
        parse_name(NAME.format(f"k1{word}"))
    assert "scheduler-splits" in [rule.id for rule, _ in broken(parse_name(NAME.format(f"k4{word}")))]


@pytest.mark.parametrize(
    ("former", "slices"), [("k4split", 4), ("k3fused", 3), ("k1anysplit", None), ("k2anysplit", 2), ("k40splitk", 40)]
)
def test_a_former_name_is_of_the_kernel_that_replaced_its_own(former: str, slices: int | None) -> None:
    assert is_former(NAME.format(former))
    assert not is_former(SPLIT_K)
    with pytest.warns(RenamedWarning, match=rf"{former} kernels are replaced by splitk kernels, .* is still accepted"):
        assert present_name(NAME.format(former)) == (SPLIT_K, slices)
    parse_name.cache_clear()
    with pytest.warns(RenamedWarning):
        assert kernel_name(parse_name(NAME.format(former))) == SPLIT_K


def test_a_former_name_and_slices_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"slices is 8, but the former name .* contains 4: omit slices"):
        present_name(NAME.format("k4splitk"), 8)
    with pytest.warns(RenamedWarning):
        assert present_name(NAME.format("k4splitk"), 4) == present_name(NAME.format("k1anysplit"), 4) == (SPLIT_K, 4)


def test_what_was_recorded_with_the_number_in_the_name_is_the_kernel_in_so_many_slices() -> None:
    for name in ("k40splitk", "k40anysplit"):
        assert SlicedKernel.recorded(NAME.format(name)) == SlicedKernel(SPLIT_K, 40)
    assert SlicedKernel.recorded(SPLIT_K, 3) == SlicedKernel(SPLIT_K, 3)
    for name in ("k4split", "k4fused"):
        assert SlicedKernel.recorded(NAME.format(name)) == SlicedKernel(NAME.format(name), 4), "another kernel"
    for name in ("cublas", STREAM_K, NAME.format("k4cluster")):
        assert SlicedKernel.recorded(name) == SlicedKernel(name)
    assert f"{SlicedKernel(SPLIT_K, 3)}, {SlicedKernel(STREAM_K)}" == f"{SPLIT_K} in 3 slices, {STREAM_K}"
