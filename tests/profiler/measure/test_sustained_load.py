"""Timing under sustained load: who is looked at, and how many turns each has."""

from __future__ import annotations

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.sustained_load import likely_kernels, still_open

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_{}_k1_linear"
SMALL, LARGE, SLOW = (
    SlicedKernel(NAME.format(tile))
    for tile in (
        *("128x128x64_1x2_pingpong_s6_m8", "256x192x64_1x2_cooperative_s3_m8"),
        "128x256x64_2x1_cooperative_s4_m8",
    )
)
PROBLEM = GemmProblem(m=4096, n=4096, k=4096)


def test_a_large_tile_that_is_little_behind_may_be_the_fastest_alone() -> None:
    looked = {SMALL: 200.0, LARGE: 208.0, SLOW: 260.0}
    assert likely_kernels(PROBLEM, looked, 2) == [LARGE, SMALL]
    near = {**looked, SLOW: 240.0}
    assert likely_kernels(PROBLEM.but(n=256), near, 2) == [SMALL, SLOW]  # a third of the large tiles lies beyond N
    assert likely_kernels(PROBLEM, {}, 2) == []


def test_who_is_behind_has_no_further_turn() -> None:
    us = {"fast": 100.0, "near": 101.9, "slow": 102.1, "baseline": 120.0}
    assert still_open(us, 0.02, frozenset(["baseline"])) == ["fast", "near", "baseline"]
    assert still_open({}, 0.02, frozenset()) == []
