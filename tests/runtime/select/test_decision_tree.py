"""Decision trees of quick selection: walked as they are written, near the model they stand in for, and asked only where
they can answer."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.manifests import shipped_kernels

from gemmill.library.arch import DEFAULT_GPU, GPUS
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.launched import numbered
from gemmill.library.epilogues.parse import canonical
from gemmill.library.errors import RecordError, UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select import decision_tree, models
from gemmill.runtime.select.decision_tree import EXTENTS, FIGURES, TILES, Tree, extents_of, tiles_a_wave
from gemmill.runtime.select.kernels.faults import faults
from gemmill.runtime.select.measured import FORMATS
from gemmill.runtime.select.selector import Selector

FILES = sorted(models.FOLDER.glob("*.quick.json"))
H200 = GPUS["NVIDIA H200"]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(gpu=H200)


@pytest.fixture(scope="module")
def everything() -> dict[str, GemmConfig]:
    return shipped_kernels("bf16", "f16", "fp8", "int8", "tf32")


def problem(m: int, n: int, k: int, types: str = "bf16") -> GemmProblem:
    return GemmProblem(m, n, k, 1, types, "k", types, "k", "f32", types, "n")


UNMEASURED = problem(1234, 4096, 4608)

# Nested: a kernel, or what is compared, with what, and the trees to the left and to the right.
nested = st.recursive(
    st.integers(0, 99),
    lambda below: st.tuples(st.sampled_from(FIGURES), st.floats(0, 1e6), below, below),
    max_leaves=40,
)


def nodes_of(tree: Any) -> list[Any]:
    if isinstance(tree, int):
        return [tree]
    figure, threshold, left, right = tree
    return [[figure, threshold], *nodes_of(left), *nodes_of(right)]


@given(tree=nested, m=st.integers(1, 1 << 18), n=st.integers(1, 1 << 18), k=st.integers(1, 1 << 18))
def test_a_tree_is_walked_as_it_is_written(tree: Any, m: int, n: int, k: int) -> None:
    walked = Tree.of({"kernels": [["", False]] * 100, "nodes": nodes_of(tree)})
    figures = [*extents_of(m, n, k), *(tiles_a_wave(m, n, tile, 132) for tile in range(len(TILES)))]
    values = dict(zip(FIGURES, figures, strict=True))
    while not isinstance(tree, int):
        figure, threshold, left, right = tree
        tree = right if values[figure] > threshold else left
    assert walked.kernel(m, n, k, 132) == tree


def test_waves_are_counted() -> None:
    tile = FIGURES.index("128x256") - len(EXTENTS)
    assert tiles_a_wave(128, 256, tile, 132) == 1
    assert tiles_a_wave(129, 256, tile, 132) == 2
    assert tiles_a_wave(11 * 128, 12 * 256, tile, 132) == 132
    assert tiles_a_wave(19 * 128, 7 * 256, tile, 132) == 133 / 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_trees_are_of_the_model_and_the_kernels_that_ship(
    path: Path, everything: Mapping[str, GemmConfig]
) -> None:
    content = json.loads(path.read_text())
    model = models.path_of(content["gpu"], "trees")
    assert content["trained on"] == hashlib.sha256(model.read_bytes()).hexdigest(), (
        f"{model.name} was fitted anew: train these again (gemmill train --quick)"
    )
    launched = numbered(everything)
    for table in content["tables"]:
        own = GemmProblem(m=256, n=256, k=256, **table["formats"])
        for name, swap_ab in table["kernels"]:
            assert not faults(launched[name], own.transposed if swap_ab else own)
        leaves = {node for node in table["nodes"] if isinstance(node, int)}
        assert leaves == set(range(len(table["kernels"])))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "formats"),
    [
        pytest.param(gpu, key, marks=[pytest.mark.heavy] * (index % 3 > 0))  # a third in make test
        for gpu in GPUS
        for index, key in enumerate(decision_tree.trees_of(gpu))
    ],
    ids=str,
)
def test_what_trees_name_is_nearly_as_fast_as_the_models_choice(gpu: str, formats: tuple[Any, ...]) -> None:
    chance, registry = random.Random(0), Registry(gpu=GPUS[gpu])
    reached: list[float] = []
    while len(reached) < 100:
        m, n, k = (64 * round(2 ** chance.uniform(least, 8)) for least in (0, 3, 3))
        fields = dict(zip(FORMATS, formats, strict=True))
        asked = GemmProblem(m=m, n=n, k=k, **fields)
        choice = registry.select(asked, quick=True)
        if choice.source != "measured":
            assert choice.source == "quick"
            assert not faults(choice.config, asked.transposed if choice.swap_ab else asked)
            ranked = {c.name: c.us for c in registry.candidates(asked, 1000)}
            reached.append(min(ranked.values()) / ranked[choice.name])
    assert math.prod(reached) ** (1 / len(reached)) > 0.965
    assert min(reached) > 0.5


@pytest.mark.parametrize(
    ("types", "epilogue"),
    [
        (("f16", "f16"), "linear"),
        (("bf16", "bf16"), "d = gelu(alpha * acc + bias[n])"),
        (("e4m3", "f16"), "d = acc * x[m] * y[n]"),
        (("f16", "f16"), "d = silu(gate) * up"),
    ],
)
def test_types_and_epilogues_are_those_asked_for(registry: Registry, types: tuple[Any, Any], epilogue: str) -> None:
    ab, d = types
    sources = set()
    for m, n, k in itertools.product((5, 100, 1234, 6000), (1536, 4160), (4608, 2112)):
        asked = replace(problem(m, n, k, ab), d_dtype=d, epilogue=canonical(epilogue))
        choice = registry.select(asked, quick=True)
        sources.add(choice.source)
        assert not faults(choice.config, asked.transposed if choice.swap_ab else asked)
        assert (choice.config.a.dtype, choice.config.d.dtype) == types
        assert choice.name in {candidate.name for candidate in registry.candidates(asked, 1000)}
    # Some kernels have no room for an expression, and those of the transposed problem pair no columns: the model then.
    assert "quick" in sources or "gate" in epilogue
    assert sources == {"quick"} or epilogue != "linear"


def test_the_model_decides_where_no_tree_can(registry: Registry, everything: Mapping[str, GemmConfig]) -> None:
    assert registry.select(UNMEASURED, quick=True).source == "quick"
    assert registry.select(UNMEASURED).source == "model"
    others = (
        replace(UNMEASURED, batch=3),
        replace(UNMEASURED, b_align=2),
        replace(UNMEASURED, c_dtype="bf16", c_major="n"),
        replace(UNMEASURED, d_dtype="f32"),
        replace(UNMEASURED, k=decision_tree.LARGEST_EXTENT + 64),
        replace(UNMEASURED, m=0),
    )
    for other in others:
        assert registry.select(other, quick=True) == registry.select(other, objective="burst")
    assert registry.select(UNMEASURED, 100, quick=True) == registry.select(UNMEASURED, 100)
    elsewhere = Registry(gpu=replace(DEFAULT_GPU, name="NVIDIA H20"))
    assert elsewhere.select(UNMEASURED, quick=True).source == "model"
    named = registry.select(UNMEASURED, quick=True).name
    without = Selector({name: config for name, config in everything.items() if name != named}, H200)
    assert without.select(UNMEASURED, quick=True).source == "model"


def test_measurements_come_first(registry: Registry) -> None:
    shape = problem(4096, 4096, 4096)
    assert registry.select(shape, quick=True).source == "measured"
    assert registry.select(shape, quick=True) == registry.select(shape, objective="burst")


def test_what_nothing_serves_is_refused_all_the_same(registry: Registry) -> None:
    gated = replace(UNMEASURED, n=4097, epilogue=canonical("d = silu(gate) * up"))
    with pytest.raises(UnsupportedProblemError, match="n is 4097; an epilogue of pairs of columns needs an even one"):
        registry.select(gated, quick=True)


def test_a_file_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    models.path_of("NVIDIA Next", "quick").write_text(json.dumps({"version": 0, "gpu": "NVIDIA Next"}))
    with pytest.raises(RecordError, match="version 0 for NVIDIA Next, not 1"):
        decision_tree.trees_of("NVIDIA Next")
