"""The families without TMA against float64: extents around every tile edge, any strides and alignments, batches."""

from __future__ import annotations

import random

import pytest
from tests.cases.kernels import DIRECT, configs, each
from tests.gpu.harness import check

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.legality.rules import verdicts
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

each_kernel = each(DIRECT)


@pytest.fixture(scope="module", autouse=True)
def _compiled(registry: Registry) -> None:
    registry.warm(configs(DIRECT))


@each_kernel
def test_sizes_around_every_tile_edge_are_exact(config: GemmConfig, registry: Registry) -> None:
    assert not verdicts(config)
    tile, seed = config.tile, random.Random(kernel_name(config))
    # Not 1: both majors describe a single row or column, and a plan takes the one it prefers.
    rows, columns = ([2, t - 1, t, t + 1, 2 * t + 3] for t in (tile.m, tile.n))
    depths = [2, 3, tile.k - 1, tile.k, tile.k + 1, tile.k * config.stages + 1, tile.k * (2 * config.stages + 1) + 3]
    sizes = [(seed.choice(rows), seed.choice(columns), tile.k + 5) for _ in range(8)]
    sizes += [(tile.m + 1, tile.n + 1, depth) for depth in depths]
    scalars = {"alpha": 2.0, "beta": -3.0} if config.c else {"alpha": -1.0}
    for index, (m, n, k) in enumerate(sizes):
        check(config, m, n, k, registry, seed=index, pad=1 + index % 3, offset=index % 5, **scalars)


@each_kernel
def test_more_tiles_than_the_gpu_holds(config: GemmConfig, registry: Registry) -> None:
    check(config, 29 * config.tile.m + 5, 29 * config.tile.n - 3, 3 * config.tile.k + 5, registry)


@each_kernel
def test_random_operands_stay_within_each_elements_bound(config: GemmConfig, registry: Registry) -> None:
    scalars = {"alpha": 2.0, "beta": -1.0} if config.c else {"alpha": 2.0}
    check(config, 301, 275, 1003, registry, data="random", **scalars)


@each_kernel
@pytest.mark.parametrize("batched", ["abcd", "bcd", "acd"])
def test_every_matrix_of_a_batch(config: GemmConfig, batched: str, registry: Registry) -> None:
    check(config, config.tile.m + 3, config.tile.n + 5, config.tile.k + 9, registry, batch=5, batched=batched)


@each_kernel
def test_without_k_d_is_beta_c(config: GemmConfig, registry: Registry) -> None:
    if "mn" in (config.a.major, config.b.major):
        pytest.skip("operands without elements are bound K-major")
    check(config, config.tile.m + 3, config.tile.n * 2 + 5, 0, registry, **({"beta": -2.0} if config.c else {}))
