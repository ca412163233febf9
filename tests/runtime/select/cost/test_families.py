"""What each family costs does not depend on who else is in a table."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases.manifests import shipped_set

from gemmill.library.arch import GPUS
from gemmill.library.config.model import GemmConfig
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.model import FEATURES, FeatureTable, analytic, features

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
@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("batching", ["strided", "grouped"])
def test_a_kernel_costs_in_a_table_what_it_costs_alone(
    kernels: list[GemmConfig], size: tuple[int, int, int], swap_ab: bool, batching: str
) -> None:
    asked = GemmProblem(*size, 4, "bf16", "k", "bf16", "k", "f32", "bf16", "n", batching=batching)
    alone = [FeatureTable.of([config], swap_ab) for config in kernels]
    for table in (FeatureTable.of(kernels, swap_ab), FeatureTable.joined(alone)):
        figures, others = analytic(table, asked, H200)
        rows = features(table, figures, others, asked, H200)
        assert rows.shape == (len(FEATURES), len(kernels))
        for i, own in enumerate(alone):
            expected, expected_others = analytic(own, asked, H200)
            assert [figure[i] for figure in figures] == [float(figure[0]) for figure in expected]
            expected_rows = features(own, expected, expected_others, asked, H200)
            assert rows[:, i].tolist() == expected_rows[:, 0].tolist()
        few = np.array([5, 2])
        some = features(table, figures, others, asked, H200, few)
        assert np.array_equal(some, rows[:, few])
