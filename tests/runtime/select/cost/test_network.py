"""The network that corrects the analytic model: of which kernels, and that it is evaluated as it was fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.cases.manifests import shipped_set
from tests.cases.problems import plain

from gemmill.library.arch import DEFAULT_GPU, GPUS, Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.runtime.select.cost import model
from gemmill.runtime.select.cost.network import Network, corrections_of_rows, network_of
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.model_file import INPUTS, content_of, model_of

KERNELS = list(shipped_set("bf16").expand())
PLAIN = [c for c in KERNELS if (c.a.major, c.b.major, c.d.major, c.c, c.d.dtype) == ("k", "k", "n", None, "bf16")]
PROBLEM = plain((256, 4096, 4096, 1), ("bf16", "k"), ("bf16", "k"), "f32", None, ("bf16", "n"))


def table_of(configs: Sequence[GemmConfig], gpu: Gpu = DEFAULT_GPU, network: Network | None = None) -> FeatureTable:
    """Of a GPU's own network, unless another is given."""
    if network is None and (learnt := model_of(gpu.name)):
        network = learnt.network
    return FeatureTable.of([(SlicedKernel(kernel_name(config)), config, False) for config in configs], gpu, network)


def test_kernels_that_could_be_the_fastest_are_corrected_as_the_network_was_fitted() -> None:
    table = table_of(PLAIN)
    work = model.analytic(table, PROBLEM, DEFAULT_GPU)
    analytic = work["us"]
    factors = np.exp(corrections_of_rows(table.network or (), model.features(table, work)))
    found = model.times(table, PROBLEM, DEFAULT_GPU)["us"] / analytic
    corrected = np.flatnonzero(found != 1)
    fitted = analytic[table.is_fitted]
    assert corrected.size == model.MOST < (fitted <= model.BEHIND * analytic.min()).sum()
    assert analytic[corrected].max() <= np.sort(fitted)[model.MOST - 1]
    np.testing.assert_allclose(found[corrected], factors[corrected], rtol=1e-4)
    slow = np.flatnonzero(analytic > model.BEHIND * analytic.min())  # as if these alone served the problem
    assert (model.times(table, PROBLEM, DEFAULT_GPU, slow)["us"][slow] != analytic[slow]).any()


def test_groups_and_gpus_that_nobody_measured_have_the_analytic_model_alone() -> None:
    for gpu, problem in (
        (DEFAULT_GPU, replace(PROBLEM, batching="grouped", batch=8)),
        (GPUS["NVIDIA H20"], PROBLEM),
    ):
        table = table_of(PLAIN, gpu)
        assert (model.times(table, problem, gpu)["us"] == model.analytic(table, problem, gpu)["us"]).all()


def test_it_is_fitted_to_kernels_that_transpose_and_none_that_upconvert_or_copy() -> None:
    def of_wgmma(*names: str) -> list[GemmConfig]:
        return [c for name in names for c in shipped_set(name).expand() if c.family == "wgmma"]

    every = of_wgmma("tf32", "fp8", "int8")
    transposing = [c for c in every if "mn" in (c.a.major, c.b.major) and c.a.align == TMA_ALIGN]
    table = table_of(transposing)
    assert table.is_fitted.all()
    assert table.inputs[:, -1].tolist() == [[c.a.major, c.b.major].count("mn") for c in transposing]
    assert not table_of(of_wgmma("mixed")).is_fitted.any()
    assert not table_of([c for c in every if c.a.align < TMA_ALIGN]).is_fitted.any()
    assert not table_of(list(shipped_set("simt").expand())[:4]).is_fitted.any()


@pytest.fixture(scope="module")
def of_s8() -> list[GemmConfig]:
    """What multiplies K-major s8 to a row-major s32: WGMMA, gemv and mma.sync."""
    kernels = [
        *shipped_set("int8").expand(where="a.major == 'k' and b.major == 'k' and d.major == 'n'"),
        *shipped_set("mma").expand(where="arch == 'sm90' and a.dtype == 's8' and b.dtype == 's8'"),
    ]
    return [c for c in kernels if c.d.dtype == "s32" and c.c is None]


@pytest.mark.parametrize("factor", [1.3, 0.8])
def test_kernels_that_it_was_not_fitted_to_lose_what_the_fastest_lose(of_s8: list[GemmConfig], factor: float) -> None:
    """Of a network that has the same correction of all: more time is lost by all kernels, less is gained by its own."""
    learnt = model_of(DEFAULT_GPU.name)
    assert learnt is not None
    *layers, last, last_bias = learnt.network
    table = table_of(of_s8, network=(*layers, np.zeros_like(last), last_bias * 0 + np.log(factor)))
    problem = plain((64, 15840, 6672, 1), ("s8", "k"), ("s8", "k"), "s32", None, ("s32", "n"))
    analytic = model.analytic(table, problem, DEFAULT_GPU)["us"]
    apart = model.times(table, problem, DEFAULT_GPU)["us"] / analytic
    fastest = np.flatnonzero(table.is_fitted)[analytic[table.is_fitted].argmin()]
    assert not table.is_fitted.all()
    np.testing.assert_allclose(apart[fastest], factor, rtol=1e-5)
    np.testing.assert_allclose(apart[~table.is_fitted], max(1.0, factor), rtol=1e-5)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_a_shipped_network_has_the_inputs_that_the_model_computes(gpu: str) -> None:
    content = content_of(gpu)
    assert content is not None
    network_of(content["network"], INPUTS)
    with pytest.raises(ValueError, match="inputs of the network differ"):
        network_of(content["network"], INPUTS[1:])
