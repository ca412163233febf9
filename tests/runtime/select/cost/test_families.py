"""What each family costs does not depend on who else is in a table."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases.manifests import shipped_set

from gemmill.library.arch import GPUS
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.model import analytic, features
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.model_file import INPUTS

H200 = GPUS["NVIDIA H200"]
SIZES = ((1, 4096, 4097), (300, 200, 100), (4096, 4096, 4096))


@pytest.fixture(scope="module")
def kernels() -> list[GemmConfig]:
    """Some of each family and decomposition, in an order that mixes them."""
    found: dict[tuple[str, str], list[GemmConfig]] = {}
    for manifest in ("bf16", "mma", "simt"):
        for config in shipped_set(manifest).expand():
            found.setdefault((config.family, config.scheduler.decomposition), []).append(config)
    return [config for own in zip(*(own[:4] for own in found.values() if len(own) > 3), strict=False) for config in own]


def test_every_family_has_a_cost(kernels: list[GemmConfig]) -> None:
    assert {config.family for config in kernels} == set(FAMILIES)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batching", ["strided", "grouped"])
def test_a_kernel_costs_in_a_table_what_it_costs_alone(
    kernels: list[GemmConfig], size: tuple[int, int, int], batching: str
) -> None:
    problem = GemmProblem(*size, 4, "bf16", "k", "bf16", "k", "f32", "bf16", "n", batching=batching)
    entries = [(SlicedKernel(kernel_name(config)), config, swap_ab) for swap_ab in (False, True) for config in kernels]
    table = FeatureTable.of(entries, H200)
    rows = features(table, analytic(table, problem, H200))
    assert rows.shape == (len(entries), len(INPUTS))
    at = {(k, bool(swap_ab)): i for i, (k, swap_ab) in enumerate(zip(table.kernels, table.swap_ab, strict=True))}
    for kernel, config, swap_ab in entries:
        alone = FeatureTable.of([(kernel, config, swap_ab)], H200)
        own = features(alone, analytic(alone, problem, H200))
        np.testing.assert_allclose(rows[at[kernel, swap_ab]], own[0], rtol=1e-12)
