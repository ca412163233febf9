"""The kernels of sm_70 against float64: later GPUs emulate m8n8k4, so their text is compiled for the one at hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.gpu.harness import check, direct

from gemmill.emitters.emit import emit
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.legality.rules import verdicts
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact

pytestmark = pytest.mark.gpu

CONFIGS: tuple[GemmConfig, ...] = tuple(
    direct(tile, "multistage", majors, align, ab="f16", arch="sm70", **fields)
    for tile, majors, align, fields in (
        # Every pairing of majors, through every kind of load.
        ("128x128x32", "k k n", 16, {}),
        ("128x128x32", "k mn n n", 16, {"c__dtype": "f16"}),
        ("128x128x32", "mn k m", 8, {"d__dtype": "f32"}),
        ("128x128x32", "mn mn n n", 16, {"c__dtype": "f32"}),
        ("64x64x32", "mn mn m m", 2, {"c__dtype": "f16"}),
        ("64x64x32", "k k n", 4, {}),
        ("64x64x32", "any any any any", 2, {"c__dtype": "f32"}),
        # The least tiles and stages, and warps of other shapes.
        ("16x16x32", "k mn n", 16, {}),
        ("32x64x16", "mn k n", 16, {"d__dtype": "f32"}),
        ("16x64x16", "k k n", 2, {}),
        ("128x64x32", "mn mn n", 16, {}),
        # Warps that share K of a stage.
        ("32x32x64", "k mn n", 16, {}),
    )
)
each_kernel = pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)


class Retargeted(Registry):
    """Kernels of sm_90 made of the source of the same kernel of sm_70."""

    def get(self, kernel: str | GemmConfig) -> Artifact:
        config = parse_name(kernel) if isinstance(kernel, str) else kernel
        if (name := kernel_name(config)) not in self._loaded:
            self._loaded[name] = Compiler().compile(emit(replace(config, arch="sm70")), config)
        return self._loaded[name]


@pytest.fixture(scope="module")
def retargeted() -> Registry:
    return Retargeted(manifests=())


@each_kernel
def test_sizes_around_every_tile_edge_are_exact(config: GemmConfig, retargeted: Registry) -> None:
    assert not verdicts(config)
    here = replace(config, arch="sm90")
    tile, seed = config.tile, random.Random(kernel_name(config))
    rows, columns = ([2, t - 1, t, t + 1, 2 * t + 3] for t in (tile.m, tile.n))
    sizes = [(seed.choice(rows), seed.choice(columns), tile.k + 5) for _ in range(6)]
    sizes += [(tile.m + 1, tile.n + 1, k) for k in (2, 7, tile.k - 1, tile.k, 2 * tile.k + 1, 5 * tile.k + 3)]
    scalars = {"alpha": 2.0, "beta": -3.0} if config.c else {"alpha": -1.0}
    for index, (m, n, k) in enumerate(sizes):
        check(here, m, n, k, retargeted, seed=index, pad=1 + index % 3, offset=index % 5, **scalars)


@each_kernel
def test_random_operands_and_batches(config: GemmConfig, retargeted: Registry) -> None:
    here = replace(config, arch="sm90")
    scalars = {"alpha": 2.0, "beta": -1.0} if config.c else {"alpha": 2.0}
    check(here, 301, 275, 1003, retargeted, data="random", **scalars)
    check(here, config.tile.m + 3, config.tile.n + 5, config.tile.k + 9, retargeted, batch=5, batched="acd")
    check(here, 19 * config.tile.m + 5, 29 * config.tile.n - 3, 3 * config.tile.k + 5, retargeted)
