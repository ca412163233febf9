"""The selector: serves what can be served, the best first, and says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases.manifests import shipped_set
from tests.runtime.select.problems import H200, problem

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem, Regime
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import RUNNERS_UP
from gemmill.runtime.select.cost.model import times
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures, with_sms
from gemmill.runtime.select.kernels.faults import faults
from gemmill.runtime.select.model_file import model_of
from gemmill.runtime.select.selector import Selector

extents = st.integers(1, 40_000)


@given(m=extents, n=extents, k=st.integers(0, 40_000), batch=st.integers(1, 64))
@example(m=238, n=4, k=453, batch=8)  # goes to a kernel of any strides
def test_every_size_is_served_and_the_best_comes_first(
    selector: Selector, kernels: dict[str, GemmConfig], m: int, n: int, k: int, batch: int
) -> None:
    asked = problem(m, n, k, batch)
    choice, tables = selector.select(asked, objective="burst"), model_of(H200.name)
    assert kernels[choice.name] == choice.config
    assert not faults(choice.config, asked.transposed if choice.swap_ab else asked)
    assert choice.config.c is None
    times = [choice.predicted_us, *(us for _, us in choice.runners_up)]
    assert np.isfinite(times).all()
    assert times == sorted(times)
    assert times[0] > 0
    assert choice.kernel not in dict(choice.runners_up)
    assert choice.source == ("measured" if tables and tables.times(asked) else "model")


def test_nothing_is_faster_than_the_gpu(selector: Selector) -> None:
    for size in (264, 1032, 4104, 16392):  # none that ships measured
        square = problem(size, size, size)
        us = selector.select(square).predicted_us
        assert square.flops / us / 1e6 < 1000, "TFLOP/s"
        assert 3 * 2 * size * size / us / 1e3 < 5000, "GB/s"


@pytest.mark.parametrize("objective", ["burst", "sustained"])
def test_more_work_takes_longer(selector: Selector, objective: Regime) -> None:
    base = selector.select(problem(4224, 4224, 4224), objective=objective).predicted_us
    for larger in (problem(8448, 4224, 4224), problem(4224, 8448, 4224), problem(4224, 4224, 8448)):
        assert 1.7 < selector.select(larger, objective=objective).predicted_us / base < 2.3
    if objective == "burst":  # a batch has the time of one whatever the objective
        assert 3.5 < selector.select(problem(4224, 4224, 4224, 4), objective=objective).predicted_us / base < 4.5


@pytest.mark.parametrize("extents", [(0, 8, 8, 1), (8, 0, 8, 1), (8, 8, 8, 0)])
def test_problems_without_output_still_get_a_kernel(selector: Selector, extents: tuple[int, int, int, int]) -> None:
    assert selector.select(problem(*extents)).predicted_us == 0


def test_the_reason_names_figures(selector: Selector) -> None:
    choice = selector.select(problem(4096, 4096, 4224))
    tile = choice.config.tile
    for part in (f"of {tile.m}x{tile.n}", "waves on 132 SMs", "bound by tensor cores", "TFLOP/s"):
        assert part in choice.reason
    assert len(choice.runners_up) == RUNNERS_UP
    assert "bound by DRAM" in selector.select(problem(16, 8192, 8320)).reason


def test_a_choice_is_made_once(selector: Selector) -> None:
    assert selector.select(problem(333, 444, 555)) is selector.select(problem(333, 444, 555))


@pytest.mark.parametrize("size", [(1, 8192, 4096), (8192, 16, 4096), (300, 2000, 512), (4096, 4096, 4224)])
def test_a_choice_is_the_best_of_all_kernels_judged_one_by_one(
    selector: Selector, kernels: dict[str, GemmConfig], size: tuple[int, int, int]
) -> None:
    asked = problem(*size)
    learnt = model_of(H200.name)
    assert learnt is not None

    def us(name: str, config: GemmConfig, swap_ab: bool) -> float:
        return float(
            times(FeatureTable.of([(SlicedKernel(name), config, swap_ab)], H200, learnt.network), asked, H200)["us"][0]
        )

    alone = {
        (name, way is not asked): us(name, config, way is not asked)
        for name, config in kernels.items()
        for way in (asked, asked.transposed)
        if not faults(config, way)
    }
    choice = selector.select(asked, objective="burst")
    assert choice.predicted_us == pytest.approx(alone[choice.name, choice.swap_ab], rel=1e-5)
    assert choice.predicted_us == pytest.approx(min(alone.values()), rel=1e-5)


def test_choices_do_not_depend_on_the_order_of_the_kernels(kernels: dict[str, GemmConfig]) -> None:
    backwards = Selector(dict(reversed(list(kernels.items()))), H200)
    for size in (64, 512, 2048, 8192):
        assert backwards.select(problem(size, size, size)) == Selector(kernels, H200).select(problem(size, size, size))


def test_fewer_sms_take_longer_and_no_larger_clusters(selector: Selector) -> None:
    gemm = problem(4096, 4096, 4096)
    times = [selector.select(gemm, sms).predicted_us for sms in (1, 8, 66, 131)]
    assert times == sorted(times, reverse=True)
    assert times[-2] > selector.select(gemm).predicted_us
    assert selector.select(gemm, 132) == selector.select(gemm, 10_000) == selector.select(gemm)
    one = selector.select(gemm, 1).config.cluster
    assert (one.m, one.n) == (1, 1)
    clusters = {n: c for n, c in selector.configs.items() if c.cluster.m == 2}
    with pytest.raises(UnsupportedProblemError):
        Selector(clusters, H200).select(gemm, 1)


def test_a_slice_of_a_gpu_is_no_whole_one() -> None:
    whole = figures("NVIDIA H200")
    part = with_sms(figures("NVIDIA H200 MIG 1g.18gb"), 16, "NVIDIA H200 MIG 1g.18gb")
    assert part.clusters_of_4 <= 4
    configs = {kernel_name(config): config for config in shipped_set("bf16").expand("quick")}
    problem = GemmProblem(4096, 4096, 4096, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
    times = Decision(problem=problem, gpu="NVIDIA H200 MIG 1g.18gb", kernel=next(iter(configs)), us=1e6)
    assert Selector(configs, whole, [times]).select(problem).predicted_us < 1e6, "its times are not those of the whole"
    alone = Selector(configs, part).select(problem)
    assert alone.source == "model", "nor those of the whole its own"
    assert alone.predicted_us > 4 * Selector(configs, whole).select(problem).predicted_us


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(manifests=[shipped_set("bf16")])


@pytest.mark.parametrize(
    ("changes", "sm_count", "says"),
    [
        ({"m": -5}, None, "m is -5"),
        ({"k": 1 << 33}, None, "k is 8589934592"),
        ({"a_dtype": "bf17"}, None, "a_dtype is 'bf17'"),
        ({"c_dtype": "bf16"}, None, "c_major None"),
        ({"epilogue": "d = alpha * acc"}, None, "the canonical spelling 'linear'"),
        ({"n": 511, "epilogue": "d = silu(gate) * up"}, None, "n is 511"),
        ({}, 1.5, "sm_count is 1.5"),
        ({}, 0, "sm_count is 0"),
    ],
)
def test_a_problem_that_there_cannot_be_is_refused(
    registry: Registry, changes: dict[str, Any], sm_count: Any, says: str
) -> None:
    problem = GemmProblem(512, 512, 512).but(**changes)
    with pytest.raises(UnsupportedProblemError, match=says):
        registry.select(problem, sm_count)
