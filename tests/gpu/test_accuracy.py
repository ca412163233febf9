"""Every family member against float64, around every tile edge and in every batch."""

from __future__ import annotations

import itertools

import pytest
from tests.cases.kernels import WGMMA, each
from tests.gpu.harness import check

from gemmill.library.config.model import GemmConfig
from gemmill.library.legality.rules import verdicts
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

each_kernel = each(WGMMA)


def edges(tile: int, cluster: int, within: int) -> list[int]:
    """Extents on both sides of every edge that a kernel knows: within a tile, of a tile, of a cluster of tiles."""
    around = {edge + step for edge in (within, tile, tile * cluster) for step in (-1, 0, 1)}
    return sorted({1, tile * (cluster + 1) + 8} | {extent for extent in around if extent > 0})


@each_kernel
def test_sizes_around_every_tile_edge_are_exact(config: GemmConfig, registry: Registry) -> None:
    assert not verdicts(config)
    tile, cluster = config.tile, config.cluster
    rows, columns = edges(tile.m, cluster.m, 64), edges(tile.n, cluster.n, min(16, tile.n))
    depths = [1, 8, tile.k - 1, tile.k, tile.k + 1, tile.k * config.stages + 1, tile.k * (2 * config.stages + 1)]
    sizes = [*itertools.product(rows, columns, [tile.k + 8]), *itertools.product([tile.m + 1], [tile.n + 1], depths)]
    scalars = {"alpha": 2.0, "beta": -0.5} if config.c else {"alpha": -0.5}
    for index, (m, n, k) in enumerate(sizes):
        if m == n == 1:
            continue  # both majors of D describe a single element, and a plan takes n
        check(config, m, n, k, registry, seed=index, pad=index % 3, offset=index % 5, **scalars)


@each_kernel
def test_more_tiles_than_the_gpu_holds(config: GemmConfig, registry: Registry) -> None:
    m = 13 * config.tile.m * config.cluster.m + 5
    n = 12 * config.tile.n * config.cluster.n - 3
    check(config, m, n, 3 * config.tile.k + 8, registry)


@each_kernel
@pytest.mark.parametrize("k", [256, 4096])
def test_random_operands_stay_within_each_elements_bound(config: GemmConfig, k: int, registry: Registry) -> None:
    scalars = {"alpha": 1.25, "beta": -0.75} if config.c else {"alpha": 1.25}
    check(config, 1000, 1048, k, registry, data="random", **scalars)


@each_kernel
@pytest.mark.parametrize("batched", ["abcd", "bcd", "acd", "abd"])
def test_every_matrix_of_a_batch(config: GemmConfig, batched: str, registry: Registry) -> None:
    if batched == "abd" and config.c is None:
        pytest.skip("no C to broadcast")
    m, n = config.tile.m * config.cluster.m + 3, config.tile.n * config.cluster.n + 5
    check(config, m, n, config.tile.k + 8, registry, batch=5, batched=batched)


@each_kernel
def test_a_batch_larger_than_the_grid(config: GemmConfig, registry: Registry) -> None:
    check(config, 40, 24, 48, registry, batch=300)


@each_kernel
def test_without_k_d_is_beta_c(config: GemmConfig, registry: Registry) -> None:
    if (config.a.major, config.b.major) != ("k", "k"):
        pytest.skip("operands without elements are bound K-major")
    scalars = {"beta": -0.5} if config.c else {}
    check(config, config.tile.m + 3, config.tile.n * 2 + 5, 0, registry, **scalars)
    check(config, 300, 200, 0, registry, batch=3, **scalars)
