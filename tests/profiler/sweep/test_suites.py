"""The suites that ship and say what their problems are: kernels serve every one of them."""

from __future__ import annotations

import pytest

from gemmill.library.config.batchings import GROUPED_EXTENT
from gemmill.library.input.group_sizes import sizes_of
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites
from gemmill.runtime.registry import Registry

SAYING = ("attention", "deep-narrow", "fp8-blocks", "fp8-rows", "fused-mlp", "m-major", "moe", "muon", "w4a16")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(gpu="H200")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYING)
def test_every_problem_of_a_suite_has_a_kernel(name: str, registry: Registry) -> None:
    suite = load_shapes(shipped_suites()[name])
    assert not suite.left_out
    for problem in dict.fromkeys(shape.problem for shape in suite.shapes):
        choice = registry.select(problem)
        assert choice.predicted_us > 0, problem


def test_experts_are_chosen_evenly_and_not() -> None:
    suite = load_shapes(shipped_suites()["moe"])
    assert {shape.sizes for shape in suite.shapes} == {"balanced", "zipf:1.1"}
    for shape in suite.shapes:
        assert shape.problem.batching in GROUPED_EXTENT
        assert len(sizes_of(shape.problem, shape.sizes)) == shape.problem.batch
    assert len({(shape.n, shape.k) for shape in suite.shapes if "gate" in shape.problem.epilogue}) == 6, "a model each"
