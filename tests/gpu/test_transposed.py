"""8-bit and tf32 operands that are not K-major: transposed in shared memory on their way to the tensor cores, or, as A
of tf32, multiplied from registers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import check, kernel

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

S32: dict[str, Any] = {"accumulator": "s32", "d__dtype": "s32"}
F32: dict[str, Any] = {"d__dtype": "f32"}

CONFIGS: tuple[GemmConfig, ...] = (
    kernel("128x128x128", ab="s8", a__major="mn", **S32),
    kernel("128x128x128", "pingpong", ab="s8", b__major="mn", **S32),
    kernel("128x256x64", "cooperative", "2x1", ab="u8", b__dtype="s8", b__major="mn", **S32),
    kernel("64x64x64", "pingpong", ab="s8", b__dtype="u8", a__major="mn", b__major="mn", **S32),
    # An odd number of stages of B ends within a period of A's swizzle.
    kernel("128x24x64", "pingpong", "1x2", ab="s8", a__major="mn", stages=5, **S32),
    kernel("192x128x128", "cooperative", "1x2", ab="s8", a__major="mn", b__major="mn", accumulator="s32"),
    kernel("64x64x256", "pingpong", ab="s8", a__major="mn", b__major="mn", c__dtype="s32", **S32),
    kernel("128x96x128", "pingpong", ab="s8", b__major="mn", **S32),
    kernel("64x32x64", "pingpong", ab="u8", b__major="mn", **S32),
    kernel("64x128x256", "pingpong", ab="e4m3", b__major="mn", d__dtype="bf16"),
    kernel("128x128x128", ab="e4m3", b__major="mn", d__dtype="bf16"),
    kernel("128x192x128", "cooperative", "2x2", ab="e4m3", b__dtype="e5m2", a__major="mn", b__major="mn", **F32),
    kernel("64x128x128", "pingpong", ab="e5m2", a__major="mn", b__major="mn", promote=4, d__dtype="bf16", d__major="m"),
    kernel("128x128x32", ab="tf32", a__major="mn", **F32),
    kernel("128x128x32", "pingpong", "1x2", ab="tf32", b__major="mn", **F32),
    kernel("128x192x32", "cooperative", "2x1", ab="tf32", a__major="mn", b__major="mn", c__dtype="f32", **F32),
    kernel("64x16x64", "pingpong", ab="tf32", a__major="mn", b__major="mn", **F32),
    kernel("128x64x16", ab="tf32", a__major="mn", b__major="mn", **F32),
    kernel("128x24x32", "pingpong", ab="tf32", b__major="mn", **F32),
    kernel("128x24x64", "pingpong", ab="tf32", b__major="mn", **F32),
    kernel("256x64x32", "cooperative", "2x1", ab="tf32", a__major="mn", **F32),
    kernel("192x48x16", "cooperative", "1x2", ab="tf32", a__major="mn", b__major="mn", d__dtype="bf16", d__major="m"),
    kernel("128x24x32", "pingpong", "1x2", ab="tf32", a__major="mn", stages=3, **F32),
    *(
        kernel("128x64x32", ab="tf32", a__major="mn", scheduler__decomposition=how, scheduler__splits=splits, **F32)
        for how, splits in (("splitk", 1), ("cluster", 4), ("stream", 1))
    ),
)


@pytest.fixture(scope="module", autouse=True)
def compiled(registry: Registry) -> None:
    registry.warm(CONFIGS)


@pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)
def test_every_element(config: GemmConfig, registry: Registry) -> None:
    m, n, k = config.tile.m, config.tile.n, config.tile.k
    check(config, m - 1, n + 1, k * (config.stages + 1) + 1, registry, batch=2)
    check(config, 16, 48, 33, registry)
    # More tiles than the GPU holds, so that blocks come round to a second one.
    check(config, m * 12 + 1, n * 12, k + 1, registry)
    check(config, 200, 328, 300, registry, data="random")
