"""A choice: how its kernel runs, by its present and its former name, and in another process."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from tests.runtime.select.problems import H200, problem

from gemmill.library.config.names import parse_name
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.selector import Selector


def test_a_kernel_that_serves_only_the_transpose_is_chosen_as_such() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16m16_64x8x64_1x1_pingpong_s16_m8_k1_linear"
    config = parse_name(name)
    choice = Selector({name: config}, H200).select(problem(5, 4096, 4096))
    assert (choice.name, choice.swap_ab) == (name, True)
    assert "64 tiles of 64x8" in choice.reason
    assert "transposed" in choice.reason
    as_it_is = replace(problem(4096, 5, 4096), d_major="m")
    assert not Selector({name: config}, H200).select(as_it_is).swap_ab
    assert needs_swap(config, problem(5, 4096, 4096)) is True
    assert needs_swap(config, as_it_is) is False
    assert needs_swap(config, replace(as_it_is, a_major="mn")) is None
    assert needs_swap(config, replace(problem(5, 4096, 4096), batching="masked")) is None


def test_the_earlier_name_of_swap_ab_is_still_read(selector: Selector) -> None:
    asked = problem(333, 444, 555)
    for found in (selector.select(asked), selector.candidates(asked, 1)[0]):
        with pytest.warns(DeprecationWarning, match="swapped is deprecated: use swap_ab"):
            assert found.swapped is found.swap_ab


def test_a_choice_goes_to_another_process_with_all_that_it_says(selector: Selector) -> None:
    choice = selector.select(problem(333, 444, 555))
    copy = pickle.loads(pickle.dumps(choice))
    assert copy == choice
    assert (copy.reason, copy.runners_up) == (choice.reason, choice.runners_up)
    assert choice.runners_up
