"""What was measured and ships: tables of kernels that serve their problems, preferred to the model alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cases.manifests import shipped_kernels
from tests.cases.problems import plain

from gemmill.library.arch import DEFAULT_GPU, GPUS, Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import in_each_number
from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select import model_file
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.kernels.faults import needs_swap, runs_transposed
from gemmill.runtime.select.model_file import FORMATS, content_of, model_of, path_of
from gemmill.runtime.select.selector import Selector

PROBLEM = plain((4096, 4096, 4096, 1), ("bf16", "k"), ("bf16", "k"), "f32", None, ("bf16", "n"))
ELSEWHERE = replace(PROBLEM, k=4224)
MEASURED = [gpu for gpu in GPUS.values() if path_of(gpu.name).is_file()]


@pytest.fixture(scope="module")
def kernels() -> dict[str, GemmConfig]:
    return shipped_kernels("bf16")


@pytest.fixture(scope="module")
def everything() -> Mapping[str, GemmConfig]:
    return shipped_kernels("bf16", "f16", "fp8", "int8", "tf32")


def test_every_file_that_ships_is_of_a_gpu() -> None:
    assert {path_of(gpu.name) for gpu in MEASURED} == {*model_file.FOLDER.glob("*.json")}


@pytest.mark.parametrize("gpu", MEASURED, ids=lambda gpu: gpu.name)
def test_a_shipped_table_names_kernels_that_ship_and_serve_its_problems(
    gpu: Gpu, everything: Mapping[str, GemmConfig]
) -> None:
    content, tables = content_of(gpu.name), model_of(gpu.name)
    assert content is not None
    assert tables is not None
    assert {kernel.name for kernel in tables.kernels} <= set(everything)
    for table in content["measured"]["tables"]:
        assert (*table["formats"], "rows", "symmetry")[: len(FORMATS)] == FORMATS  # the H100's has not the last two
        for extents in table["problems"]:
            m, n, k, *_ = map(int, extents.split("x"))
            problem = GemmProblem(m=m, n=n, k=k, **table["formats"])
            found = tables.times(problem)
            assert found
            assert [us for us, _ in found] == sorted(us for us, _ in found)
            for _, kernel in found:
                config = everything[kernel.name]
                assert kernel in in_each_number(kernel.name, config)
                assert needs_swap(config, problem) is runs_transposed(config, problem)


@pytest.mark.parametrize("gpu", MEASURED, ids=lambda gpu: gpu.name)
def test_the_fastest_kernel_that_was_measured_is_chosen(gpu: Gpu, kernels: dict[str, GemmConfig]) -> None:
    tables = model_of(gpu.name)
    assert tables is not None
    (us, first), *others = tables.times(PROBLEM)
    selector = Selector(kernels, gpu)
    choice = selector.select(PROBLEM, objective="burst")
    assert (choice.kernel, choice.predicted_us, choice.source) == (first, us, "measured")
    assert choice.runners_up == tuple((kernel, us) for us, kernel in others)
    found = selector.candidates(PROBLEM, 1 + len(others))
    assert [c.kernel for c in found] == [first, *(kernel for _, kernel in others)]
    # The model's own, of all kernels.
    assert len(selector.times(PROBLEM)) > len(kernels) / 20


def test_the_model_is_asked_where_nothing_was_measured(kernels: dict[str, GemmConfig]) -> None:
    selector = Selector(kernels, DEFAULT_GPU)
    for choice in (
        selector.select(ELSEWHERE),
        selector.select(replace(PROBLEM, a_align=8)),
        selector.select(PROBLEM, 100),
        Selector(kernels, GPUS["NVIDIA H100 PCIe"]).select(PROBLEM),
    ):
        assert choice.source == "model"


def test_the_model_is_asked_where_the_fastest_kernel_is_missing(kernels: dict[str, GemmConfig]) -> None:
    fastest = Selector(kernels, DEFAULT_GPU).select(PROBLEM).name
    without = {name: config for name, config in kernels.items() if name != fastest}
    assert Selector(without, DEFAULT_GPU).select(PROBLEM).source == "model"


def test_a_caller_s_own_measurements_come_before(kernels: dict[str, GemmConfig]) -> None:
    shipped = Selector(kernels, DEFAULT_GPU).select(PROBLEM)
    slower = next(
        name for name in kernels if name not in (shipped.name, *(kernel.name for kernel, _ in shipped.runners_up))
    )
    own = Decision(problem=PROBLEM, gpu=DEFAULT_GPU.name, kernel=slower, us=1e6)
    assert Selector(kernels, DEFAULT_GPU, [own]).select(PROBLEM).name == slower


def test_a_file_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "FOLDER", tmp_path)
    path_of("Some GPU").write_text('{"version": 99, "gpu": "Some GPU"}')
    with pytest.raises(RecordError, match="version 99"):
        model_of("Some GPU")
