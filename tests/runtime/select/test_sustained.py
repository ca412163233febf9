"""Selection for programs that the power limit holds: the energy term, when it counts, and what it gives way to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmill.library.arch import gpu_named
from gemmill.library.arithmetic import parse_arithmetic
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.dtypes import DTypeName, default_accumulator, default_output
from gemmill.library.errors import ProblemError, RecordError
from gemmill.library.manifest.load import load_manifest, shipped_manifest
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select import model_file
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.cost.energy import energy_of, power_us
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.selector import Selector

H200 = gpu_named("H200")
LARGE = GemmProblem(m=8192, n=4096, k=14336)
SMALL = GemmProblem(m=64, n=4096, k=7168)


@pytest.fixture(scope="module")
def kernels() -> dict[str, GemmConfig]:
    return {kernel_name(config): config for config in load_manifest(shipped_manifest("bf16")).expand()}


@pytest.fixture(scope="module")
def selector(kernels: Mapping[str, GemmConfig]) -> Selector:
    return Selector(kernels, H200)


def test_under_the_limit_fewer_bytes_for_a_product_win(selector: Selector) -> None:
    held, alone = selector.select(LARGE), selector.select(LARGE, objective="burst")
    said = re.match(r"under sustained load, at the power limit of 691 W \(([\d.]+) J per launch\): ", held.reason)
    assert said
    assert float(said[1]) == pytest.approx(691e-6 * held.predicted_us, rel=1e-2)
    assert moved(held.config) < moved(alone.config)
    assert held.predicted_us > 0
    assert selector.under_power(LARGE) is not None
    assert selector.under_power(SMALL) is None


def test_with_few_rows_tiles_that_cover_less_win_where_they_are_as_fast(selector: Selector) -> None:
    for problem, source in ((GemmProblem(1, 28672, 4096), "measured"), (GemmProblem(4, 8192, 8192), "model")):
        saving, alone = selector.select(problem), selector.select(problem, objective="burst")
        assert (saving.source, alone.source) == (source, source)
        assert covered(saving) < covered(alone) / 2
        assert alone.predicted_us < saving.predicted_us < 1.01 * alone.predicted_us
        assert saving.reason.startswith("about as fast as the fastest, with fewer multiply-adds outside D: ")
        assert alone.kernel in [kernel for kernel, _ in saving.runners_up]
        assert saving.kernel not in [kernel for kernel, _ in saving.runners_up]


def covered(choice: Choice) -> int:
    """Rows that a tile covers."""
    return choice.config.tile.n if choice.swap_ab else choice.config.tile.m


def moved(config: GemmConfig) -> float:
    return (config.tile.m + config.tile.n) / (config.tile.m * config.tile.n)


@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        replace(LARGE, m=1000),
        replace(LARGE, n=1000),
        replace(LARGE, m=0),
        LARGE.but(a_dtype="s8", b_dtype="u8", d_dtype="f32", accumulator="s32"),
        replace(LARGE, batching="grouped", batch=17),
        replace(LARGE, batching="masked", batch=4, expected_rows=1000),
        replace(LARGE, batching="kgrouped", a_major="mn", b_major="mn"),
        replace(LARGE, batch=4),
        LARGE.but(d_dtype="f32"),
    ],
)
def test_elsewhere_it_is_as_for_a_lone_launch(problem: GemmProblem) -> None:
    registry = Registry(gpu=H200)
    assert registry.select(problem) == registry.select(problem, objective="burst")


@pytest.mark.parametrize("rows", [{"batching": "grouped"}, {"batching": "masked", "expected_rows": 2048}])
def test_groups_of_many_rows_are_held_as_a_matrix_of_as_many_is(rows: dict[str, Any]) -> None:
    registry = Registry(gpu=H200)
    each = GemmProblem(m=2048, n=4096, k=2048)
    groups = each.but(m=16384, batch=8, **rows)
    held, alone = registry.select(groups), registry.select(groups, objective="burst")
    assert "under sustained load, at the power limit of" in held.reason
    assert "under sustained load" not in alone.reason
    assert moved(held.config) <= moved(alone.config)
    assert power_us(groups, H200) == pytest.approx(8 * power_us(each, H200))


@pytest.mark.parametrize("rows", [{"batching": "grouped"}, {"batching": "masked", "expected_rows": 2048}])
def test_a_launch_of_groups_that_takes_a_millisecond_is_itself_a_long_run(rows: dict[str, Any]) -> None:
    registry = Registry(gpu=H200)
    long = GemmProblem(m=2048, n=4096, k=8192).but(m=16384, batch=8, **rows)
    assert registry.select(long).predicted_us > 1000
    assert registry.select(long, objective="burst") == registry.select(long)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3", "s8", "tf32"])
def test_each_type_has_its_energy_term_for_the_d_that_nobody_requests(dtype: DTypeName) -> None:
    model = model_file.model_of("NVIDIA H200")
    assert model is not None
    d, sums = default_output(dtype), default_accumulator(dtype)
    problem = LARGE.but(a_dtype=dtype, b_dtype=dtype, d_dtype=d, accumulator=sums)
    assert energy_of(problem, model.energies) is model.energies[dtype]
    assert Registry(gpu=H200).select(problem).reason.startswith("under sustained load")


def test_compatible_types_have_one_energy_term() -> None:
    registry = Registry(gpu=H200)
    problem = LARGE.but(a_dtype="e4m3", b_dtype="e4m3")
    held = registry.select(problem)
    assert held.reason.startswith("under sustained load")
    for a, b in (("e5m2", "e4m3"), ("e4m3", "e5m2")):
        alike = registry.select(problem.but(a_dtype=a, b_dtype=b))
        assert alike.predicted_us == pytest.approx(held.predicted_us, rel=0.1)
        assert alike.reason.startswith("under sustained load")


@pytest.mark.parametrize("sm_count", [1, 100])
def test_a_bound_on_sms_decides_as_for_a_lone_launch(sm_count: int, selector: Selector) -> None:
    assert selector.select(LARGE, sm_count) == selector.select(LARGE, sm_count, objective="burst")


def test_the_power_limit_counts_among_kernels_with_the_required_arithmetic(selector: Selector) -> None:
    for name in ("k16", "k16/2"):
        held = selector.select(LARGE, None, parse_arithmetic(name))
        assert held.reason.startswith("under sustained load")
        assert held.reason.endswith(f"; arithmetic {name}, as required")
    assert held.predicted_us > selector.select(LARGE).predicted_us


def test_on_another_gpu_there_is_no_energy_term(kernels: Mapping[str, GemmConfig]) -> None:
    selector = Selector(kernels, gpu_named("H100 PCIe"))
    assert selector.select(LARGE) == selector.select(LARGE, objective="burst")


def test_a_measurement_that_was_given_comes_first(kernels: Mapping[str, GemmConfig]) -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x224x64_1x1_cooperative_s4_m8_k1_linear"
    assert name in kernels
    given = Decision(problem=LARGE, gpu=H200.name, kernel=name, us=1.0)
    assert Selector(kernels, H200, [given]).select(LARGE).name == name


def test_an_objective_that_there_is_not_is_refused() -> None:
    with pytest.raises(ProblemError, match="objective is 'energy'; it must be 'sustained' or 'burst'"):
        Registry(gpu=H200).select(LARGE, objective="energy")  # type: ignore[arg-type]


def test_a_damaged_energy_term_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "FOLDER", tmp_path)
    content = model_file.content_of("NVIDIA H200", Path(model_file.__file__).parents[1] / "models")
    assert content is not None
    changed = content | {"gpu": "NVIDIA Next", "energy": {"bf16": [0.5]}}
    model_file.path_of("NVIDIA Next").write_text(json.dumps(changed))
    with pytest.raises(RecordError, match="is damaged, or not a model of a GPU"):
        model_file.model_of("NVIDIA Next")


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_the_energy_terms_that_ship_are_physical(gpu: str) -> None:
    """What moves more takes longer."""
    model = model_file.model_of(gpu)
    assert model is not None
    assert {*model.energies} == {"bf16", "f16", "e4m3", "s8", "tf32"}
    for dtype, energy in model.energies.items():
        assert 0 < energy["burst"] < 1, dtype
        assert energy["moved"] > 0, dtype
        assert energy["stages"] >= 0, dtype
        assert 0 <= energy["stream"] < 0.1, dtype


def test_the_energy_term_that_ships_names_kernels_of_the_set(selector: Selector) -> None:
    for m, n, k in ((2048, 8192, 28672), (8192, 128256, 2048), (4096, 4096, 4096)):
        choice = selector.select(GemmProblem(m=m, n=n, k=k))
        assert choice.name == kernel_name(parse_name(choice.name))
        assert choice.kernel not in {kernel for kernel, _ in choice.runners_up}
