"""Decompositions for the order of sums: serial split-K, and split-K that adds slices in a tree."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from tests.gpu.harness import check, kernel, make_case, run, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

PROBLEMS = ((300, 264, 4096), (257, 136, 1000), (130, 200, 72), (64, 392, 328), (2100, 3080, 1024))
"""M, N, K: tails along all extents, fewer K tiles than slices, and more tiles than SMs."""


def serial(tile: str, *options: str, **fields: Any) -> GemmConfig:
    return kernel(tile, *options, scheduler__decomposition="serial", **fields)


def others(config: GemmConfig, splits: int) -> list[GemmConfig]:
    """Kernels with other tiles and the same tile K, types and majors: split-K; for one slice, a data-parallel one; for
    two to four, cluster split-K."""
    tile, options = f"128x96x{config.tile.k}", ("cooperative", "1x1")
    fields: dict[str, Any] = {"ab": config.a.dtype, "a__major": config.a.major, "b__major": config.b.major}
    fields |= {"d__dtype": config.d.dtype, "d__major": config.d.major}
    if config.c:
        fields |= {"c__dtype": config.c.dtype, "c__major": config.c.major}
    found = [kernel(tile, *options, scheduler__decomposition="splitk", **fields)]
    if splits == 1:
        found.append(kernel(tile, *options, **fields))
    if 2 <= splits <= 4:
        found.append(kernel(tile, *options, scheduler__decomposition="cluster", scheduler__splits=splits, **fields))
    return found


KERNELS = (
    serial("128x192x64", "cooperative", "2x1"),
    serial("256x96x64", "cooperative", "1x2", a__major="mn", b__major="mn"),
    serial("192x112x64", "cooperative", "1x1", d__major="m", c__dtype="bf16"),
    serial("64x192x64", "pingpong", "1x1", ab="f16"),
    serial("128x96x64", "pingpong", "1x2", d__dtype="f32"),
    serial("128x192x32", "cooperative", "1x1", ab="tf32", b__major="mn"),
    serial("128x192x128", "cooperative", "2x1", ab="e4m3"),
    serial("64x128x128", "pingpong", "2x1", ab="e5m2"),
)


def bits(config: GemmConfig, size: tuple[int, int, int], slices: int | None, registry: Registry) -> Any:
    """D of a kernel on random data, within its error bound, as bytes."""
    case = make_case(config, *size, data="random")
    out = case.d.tensor
    out.fill_(float("nan"))
    run(config, case, registry, slices=slices)
    case.check()
    return out.clone(memory_format=torch.contiguous_format).view(torch.uint8)


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm(
        [*KERNELS, *(other for config in KERNELS for splits in (1, 2, 3, 4) for other in others(config, splits))]
    )
    return shared


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
@pytest.mark.parametrize("slices", [1, 2, 3, 4, 8])
def test_serial_slices_have_the_bits_of_split_k(config: GemmConfig, slices: int, registry: Registry) -> None:
    for size in PROBLEMS:
        found = bits(config, size, slices, registry)
        for other in others(config, slices):
            launched = slices if decomposition_of(other).has_slices else None
            assert torch.equal(found, bits(other, size, launched, registry)), (size, kernel_name(other))


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_every_element_is_exact(config: GemmConfig, registry: Registry) -> None:
    for slices in (1, 5, 8):
        check(config, 257, 136, 72, registry, slices=slices)
        check(config, 304, 200, 2000, registry, slices=slices)
        check(config, 136, 200, 264, registry, slices=slices, batch=3, batched="ad", alpha=2.0)
    if (config.a.major, config.b.major) == ("k", "k"):
        check(config, 200, 136, 0, registry, slices=8)


@pytest.mark.parametrize("ab", ["bf16", "f16", "tf32", "e4m3"])
def test_the_shares_of_gpus_add_up_to_the_bits_of_one(ab: str) -> None:
    k_tile = 64 * 2 // {"tf32": 4, "e4m3": 1}.get(ab, 2)
    config = kernel(f"128x128x{k_tile}", ab=ab, scheduler__decomposition="tree", d__dtype="f32")
    registry = Registry()
    registry.warm([config])
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn}[ab]
    m, n, k, slices = 200, 328, 6 * 8 * k_tile, 8
    generator = torch.Generator(device="cuda").manual_seed(7)
    a, w = (torch.randn(rows, k, device="cuda", generator=generator).to(dtype) for rows in (m, n))

    def share(rank: int, ranks: int) -> Any:
        part = slice(rank * k // ranks, (rank + 1) * k // ranks)
        out = torch.empty(m, n, device="cuda")
        options: dict[str, Any] = {"tf32": ab == "tf32", "fast_accumulation": True, "slices": slices // ranks}
        gemmill.matmul(a[:, part], w[:, part].t(), out=out, registry=registry, kernel=config, **options)
        return out

    one = share(0, 1)
    torch.testing.assert_close(one.double(), a.double() @ w.double().t(), rtol=1e-2, atol=1.0)
    in_order = reduce(torch.add, [share(rank, slices) for rank in range(slices)])
    if ab != "e4m3":  # of which the tensor core keeps so few bits that sums in f32 are exact
        assert not torch.equal(one, in_order), "data whose sum has the same bits in either order shows nothing"
    for ranks in (2, 4, 8):
        sums = [share(rank, ranks) for rank in range(ranks)]
        while len(sums) > 1:
            sums = [sums[i] + sums[i + 1] for i in range(0, len(sums), 2)]
        assert torch.equal(one.view(torch.int32), sums[0].view(torch.int32)), ranks


def test_a_tree_of_slices_has_any_alignment_and_empty_slices() -> None:
    registry = Registry()
    config = kernel("64x64x64", "pingpong", scheduler__decomposition="tree", d__align=2, d__major="m", c__dtype="f32")
    registry.warm([config])
    for slices in (1, 2, 4, 8):
        check(config, 257, 136, 72, registry, slices=slices)
        check(config, 130, 200, 2000, registry, slices=slices, batch=2)
