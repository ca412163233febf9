"""The residual model, trees that correct the analytic one: evaluated as they are written, used for measured GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.manifests import shipped_set
from tests.cases.problems import plain

from gemmill.library.arch import DEFAULT_GPU, GPUS
from gemmill.library.config.model import GemmConfig
from gemmill.runtime.select import models
from gemmill.runtime.select.cost import model, residual
from gemmill.runtime.select.cost.residual import ResidualModel

NAMES = ("M", "N", "waves")
KERNELS = list(shipped_set("bf16").expand(preset="quick"))
PLAIN = [c for c in KERNELS if (c.a.major, c.b.major, c.d.major, c.c, c.d.dtype) == ("k", "k", "n", None, "bf16")]
PROBLEM = plain((256, 4096, 4096, 1), ("bf16", "k"), ("bf16", "k"), "f32", None, ("bf16", "n"))


NUMBERS = st.floats(-8, 8, width=32)


@st.composite
def forests(draw: st.DrawFn) -> dict[str, Any]:
    depth = draw(st.integers(1, 8))
    split = st.tuples(st.sampled_from(NAMES), st.none() | NUMBERS)
    tree = st.fixed_dictionaries(
        {
            "splits": st.lists(split, min_size=depth, max_size=depth),
            "values": st.lists(NUMBERS, min_size=2**depth, max_size=2**depth),
        }
    )
    return {"features": list(NAMES), "trees": draw(st.lists(tree, min_size=1, max_size=3))}


@given(forests(), st.lists(st.tuples(*[NUMBERS] * len(NAMES)), min_size=1, max_size=5))
def test_trees_sum_the_leaves_that_each_kernel_reaches(content: dict[str, Any], kernels: list[tuple[float]]) -> None:
    def leaf(tree: dict[str, Any], kernel: tuple[float]) -> float:
        place = 0
        for name, at in tree["splits"]:
            place = 2 * place + (at is not None and kernel[NAMES.index(name)] > at)
        return float(tree["values"][place])

    expected = [sum(leaf(tree, kernel) for tree in content["trees"]) for kernel in kernels]
    found = ResidualModel.of(json.loads(json.dumps(content)))(np.array(kernels).T)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("path", sorted(models.FOLDER.glob("*.trees.json")), ids=lambda path: path.stem)
def test_a_shipped_file_asks_for_figures_that_the_model_has(path: Path) -> None:
    content = json.loads(path.read_text())
    assert content["version"] == residual.VERSION
    assert content["gpu"] in GPUS
    assert models.path_of(content["gpu"], "trees") == path
    columns = model.FeatureTable.of(PLAIN)
    figures, others = model.analytic(columns, PROBLEM, DEFAULT_GPU)
    assert set(content["features"]) <= set(model.FEATURES)
    rows = dict(zip(model.FEATURES, model.features(columns, figures, others, PROBLEM, DEFAULT_GPU), strict=True))
    assert rows["K"].tolist() == [PROBLEM.k] * len(PLAIN)
    assert rows["tile M"].tolist() == [config.tile.m for config in PLAIN]
    assert rows["us"].tolist() == figures.us.tolist()
    assert rows["last wave"].tolist() == others["last wave"].tolist()


def test_trees_correct_kernels_that_were_measured_on_the_gpu_that_was() -> None:
    columns = model.FeatureTable.of(PLAIN)
    analytic, _ = model.analytic(columns, PROBLEM, DEFAULT_GPU)
    assert columns.fitted.all()
    assert (model.estimate(columns, PROBLEM, DEFAULT_GPU).us != analytic.us).any()
    grouped = replace(PROBLEM, batching="grouped", batch=8)
    assert (
        model.estimate(columns, grouped, DEFAULT_GPU).us == model.analytic(columns, grouped, DEFAULT_GPU)[0].us
    ).all()
    elsewhere = replace(DEFAULT_GPU, name="NVIDIA H100 PCIe")
    assert (model.estimate(columns, PROBLEM, elsewhere).us == analytic.us).all()
    others = model.FeatureTable.of(list(shipped_set("simt").expand())[:4])
    assert not others.fitted.any()


def test_trees_know_kernels_that_transpose_and_none_that_upconvert() -> None:
    def of_wgmma(*names: str) -> list[GemmConfig]:
        return [c for name in names for c in shipped_set(name).expand() if c.family == "wgmma"]

    transposing = [c for c in of_wgmma("tf32", "fp8", "int8") if "mn" in (c.a.major, c.b.major)]
    columns = model.FeatureTable.of(transposing)
    assert columns.fitted.all()
    wanted = [[c.a.major, c.b.major].count("mn") for c in transposing]
    figures, others = model.analytic(columns, PROBLEM, DEFAULT_GPU)
    rows = dict(zip(model.FEATURES, model.features(columns, figures, others, PROBLEM, DEFAULT_GPU), strict=True))
    assert {*wanted} == {1, 2}
    assert rows["transposed"].tolist() == wanted
    assert not model.FeatureTable.of(of_wgmma("mixed")).fitted.any()


@pytest.fixture(scope="module")
def of_s8() -> model.FeatureTable:
    """What multiplies K-major s8 to a row-major s32: WGMMA, gemv and mma.sync."""
    kernels = [
        *shipped_set("int8").expand(where="a.major == 'k' and b.major == 'k' and d.major == 'n'"),
        *shipped_set("mma").expand(where="arch == 'sm90' and a.dtype == 's8' and b.dtype == 's8'"),
    ]
    return model.FeatureTable.of([c for c in kernels if c.d.dtype == "s32" and c.c is None])


def test_kernels_that_no_tree_knows_lose_what_the_fastest_lose(of_s8: model.FeatureTable) -> None:
    gpu = GPUS["NVIDIA H100 80GB HBM3"]  # whose memory is slower for them than the model has
    lost = []
    for m in (1, 16, 64, 256, 1024):
        problem = plain((m, 15840, 6672, 1), ("s8", "k"), ("s8", "k"), "s32", None, ("s32", "n"))
        us = model.estimate(of_s8, problem, gpu).us
        apart = us / model.analytic(of_s8, problem, gpu)[0].us
        assert of_s8.fitted[us.argmin()]
        lost.append(max(1.0, apart[us.argmin()]))
        np.testing.assert_allclose(apart[~of_s8.fitted], lost[-1])
    assert max(lost) > 1


@pytest.mark.parametrize(
    ("gpu", "size"), [("NVIDIA H200", (6551, 64, 9264, 1)), ("NVIDIA H100 80GB HBM3", (44, 15648, 608, 1))]
)
def test_aligned_problems_go_to_wgmma(of_s8: model.FeatureTable, gpu: str, size: tuple[int, int, int, int]) -> None:
    """Measured: WGMMA takes 19.2 and 6.3 us there, mma.sync 31.6 and 7.6."""
    problem = plain(size, ("s8", "k"), ("s8", "k"), "s32", None, ("s32", "n"))
    us = model.estimate(of_s8, problem, GPUS[gpu]).us
    assert of_s8.fitted[us.argmin()]


def test_trees_are_asked_of_kernels_that_could_be_the_fastest() -> None:
    columns = model.FeatureTable.of(list(shipped_set("bf16").expand(where="a.major == 'k'")))
    analytic, _ = model.analytic(columns, PROBLEM, DEFAULT_GPU)
    far = analytic.us > model.CORRECTED * analytic.us.min()
    apart = model.estimate(columns, PROBLEM, DEFAULT_GPU).us / analytic.us
    near = analytic.us[~far & columns.fitted]
    assert model.MOST_CORRECTED < near.size < far.size
    assert (apart != 1).sum() == model.MOST_CORRECTED
    assert analytic.us[apart != 1].max() <= np.sort(near)[model.MOST_CORRECTED - 1]
    # Of those that serve a problem: here only these do.
    (slow,) = np.nonzero(far & columns.fitted)
    fastest = slow[analytic.us[slow].argmin()]
    assert model.estimate(columns, PROBLEM, DEFAULT_GPU, slow).us[fastest] != analytic.us[fastest]
