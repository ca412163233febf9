"""Kernels whose CTAs sum slices of K: split-K, stream-K, and in clusters."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from tests.gpu.harness import check, check_a_thousand_runs, kernel, make_case, product, run, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import DeviceError
from gemmill.runtime.launch import workspace
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


def split(tile: str = "128x128x64", *options: str, **fields: Any) -> GemmConfig:
    return kernel(tile, *options, scheduler__decomposition="splitk", **fields)


def stream(tile: str = "128x128x64", *options: str, **fields: Any) -> GemmConfig:
    return kernel(tile, *options, scheduler__decomposition="stream", **fields)


def cluster(splits: int, tile: str = "128x128x64", *options: str, **fields: Any) -> GemmConfig:
    return kernel(tile, *options, scheduler__decomposition="cluster", scheduler__splits=splits, **fields)


SIMPLE = (split(), stream(), cluster(3, "128x96x64"), cluster(4))
"""One of each."""
BLOCK_SCALED: dict[str, Any] = {"ab": "e4m3", "promote": 4, "a__scale": "1x128", "b__scale": "128x128"}
SHARED = (
    stream(),
    stream("128x192x64", "cooperative", "2x1"),
    stream("128x128x128", "cooperative", "1x2", ab="s8"),
    stream("128x128x128", **BLOCK_SCALED),
    stream("128x256x128", "cooperative", "2x1", stages=3, **BLOCK_SCALED),
    stream("128x256x128", stages=3, **BLOCK_SCALED),
)
"""Kernels that share the tiles of a last wave."""

KERNELS: tuple[GemmConfig, ...] = (
    *SIMPLE,
    *SHARED[1:],
    split("64x64x64", "pingpong"),
    split("64x128x64", "pingpong"),
    split("128x256x64", "cooperative", "2x1"),
    split("256x96x64", "cooperative", "1x2", a__major="mn", b__major="mn"),
    split("192x128x64"),
    # D and C of the second kernel: types, majors, alignments.
    split(d__major="m"),
    split(d__dtype="f32", d__align=4),
    split("64x80x64", "pingpong", d__dtype="f32", d__major="m"),
    split(d__align=2),
    split(c__dtype="bf16"),
    split(c__dtype="f32", c__major="m", d__align=8),
    split(c__dtype="bf16", c__major="n", d__major="m"),
    split(ab="f16", accumulator="f16", d__dtype="f16"),
    # Clusters, schedules and C of kernels that exchange accumulators.
    stream("128x256x64", "cooperative", "2x1"),
    stream("256x96x64", "cooperative", "1x2", c__dtype="bf16"),
    stream("128x128x64", "cooperative", "2x2", scheduler__raster="n", scheduler__swizzle_size=4),
    stream("128x128x64", "cooperative", "2x4"),
    stream("192x96x64", d__major="m"),
    stream("256x128x64", "cooperative", "2x1"),
    # Integers, whose parts are added up in s32, and fp8, which is promoted before.
    split("128x128x128", ab="s8"),
    split("64x128x128", "pingpong", ab="s8", d__dtype="s8", d__align=1),
    split("128x128x128", **BLOCK_SCALED),
    split("128x128x32", ab="tf32"),
    # Clusters that share K: tiles, shares of one fragment and of several subtiles, schedules.
    cluster(2),
    cluster(2, "128x256x64"),
    cluster(4, "128x256x32"),
    cluster(2, "256x128x64"),
    cluster(4, "256x128x32"),
    cluster(4, "128x192x64"),
    cluster(2, "192x128x64"),
    cluster(4, "128x32x64"),
    cluster(2, "128x80x64", scheduler__raster="n", scheduler__swizzle_size=4),
    cluster(2, "64x128x64", "pingpong"),
    cluster(3, "128x72x64"),
    cluster(3, "64x144x64", "pingpong"),
    cluster(4, "64x192x64", "pingpong"),
    cluster(2, "128x128x64", "pingpong"),
    # The same: majors of A and B, C and D.
    cluster(2, "128x192x64", a__major="mn", b__major="mn"),
    cluster(4, d__major="m"),
    cluster(2, "128x96x64", d__dtype="f32"),
    cluster(2, "64x96x64", "pingpong", d__dtype="f32", d__major="m"),
    cluster(2, "128x192x64", c__dtype="bf16"),
    cluster(3, "64x72x64", "pingpong", c__dtype="bf16", d__major="m"),
    cluster(4, "64x128x64", "pingpong", c__dtype="f32", c__major="m"),
    # The same: other types.
    cluster(2, "128x256x128", ab="s8"),
    cluster(4, "128x128x128", ab="s8", d__dtype="bf16"),
    cluster(3, "128x48x128", ab="s8"),
    cluster(4, "128x64x128", ab="u8", c__dtype="s32"),
    cluster(2, "128x64x128", ab="s8", a__major="mn", b__major="mn"),
    cluster(2, "128x128x128", ab="e4m3"),
    cluster(4, "128x128x128", ab="e4m3", promote=4),
    cluster(2, "128x128x128", **BLOCK_SCALED),
    cluster(4, "128x128x32", ab="tf32"),
    cluster(2, "128x192x64", ab="f16"),
    # The same: few rows, transposed.
    cluster(2, "64x16x128", "pingpong", ab="f16", d__major="m"),
    cluster(4, "64x32x128", "pingpong", d__major="m"),
    cluster(4, "64x32x256", "pingpong", ab="e4m3", d__major="m"),
    cluster(4, "64x64x128", "pingpong", ab="f16", d__major="m"),
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm(KERNELS)
    return shared


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_every_element_is_exact(config: GemmConfig, registry: Registry) -> None:
    longest = 2048 if config.accumulator == "f16" else 4096
    shapes = [(128, 128, longest), (1000, 1000, 1000), (1, 8, 8), (257, 136, 72), (700, 3000, 200)]
    for m, n, k in shapes:
        check(config, m, n, k, registry)
    check(config, 300, 200, 520, registry, batch=3)
    check(config, 130, 200, 264, registry, batch=3, batched="ad", alpha=2.0)
    if (config.a.major, config.b.major, config.a.scale) == ("k", "k", "none"):
        check(config, 200, 136, 0, registry)
        check(config, 131, 77, 5 * 64, registry)


@pytest.mark.parametrize("config", SHARED, ids=kernel_name)
def test_however_many_clusters_share_tiles(config: GemmConfig, registry: Registry) -> None:
    """Slices of K for all, or helpers that have a slice of several tiles each, before whole waves and without any."""
    blocks = config.cluster.m * config.cluster.n
    for m, n in ((700, 900), (300, 640)):
        case = make_case(config, m, n, 4096)
        for clusters in (3, 5, 7, 9, 11, 13, 31):
            case.d.tensor.fill_(float("nan") if case.d.tensor.is_floating_point() else -1)
            run(config, case, registry, sm_count=clusters * blocks)
            case.check()


@pytest.mark.parametrize("config", SIMPLE, ids=kernel_name)
def test_random_data_within_its_bound(config: GemmConfig, registry: Registry) -> None:
    for m, n, k in [(128, 128, 4096), (1111, 777, 2048)]:
        case = make_case(config, m, n, k, data="random")
        out = case.d.tensor
        gemmill.matmul(case.a.tensor, case.b.tensor, out=out, registry=registry, kernel=config)
        case.check()


def test_an_output_of_any_alignment(registry: Registry) -> None:
    config = split(d__align=2)
    a = torch.randint(-2, 3, (130, 512), device="cuda").bfloat16()
    b = torch.randint(-2, 3, (75, 512), device="cuda").bfloat16().T
    whole = torch.full((131 * 75,), float("nan"), device="cuda", dtype=torch.bfloat16)
    out = whole[1 : 1 + 130 * 75].view(130, 75)
    gemmill.matmul(a, b, out=out, registry=registry, kernel=config)
    assert torch.equal(out, (a.float() @ b.float()).bfloat16())
    assert whole[0].isnan()
    assert whole[1 + 130 * 75 :].isnan().all()


@pytest.mark.parametrize(
    "config",
    [
        *(
            stream("192x96x64", d__major="m"),
            stream(),
            cluster(3, "128x96x64"),
            cluster(4, "64x32x128", "pingpong", d__major="m"),
        ),
    ],
    ids=kernel_name,
)
def test_a_d_that_tma_cannot_store(config: GemmConfig, registry: Registry) -> None:
    check(config, 301, 269, 1000, registry, aligns={"d": config.d.type.bytes}, offset=1)


@pytest.mark.parametrize("config", SIMPLE, ids=kernel_name)
def test_a_thousand_runs_are_equal_bit_for_bit(config: GemmConfig, registry: Registry) -> None:
    check_a_thousand_runs(config, 1300, 1100, 1777, registry)


@pytest.mark.parametrize(
    "config",
    [
        *(cluster(2), cluster(3, "128x96x64"), cluster(4)),
        *(cluster(2, "64x128x64", "pingpong"), cluster(4, "64x96x64", "pingpong")),
    ],
    ids=kernel_name,
)
@pytest.mark.parametrize("clusters", [1, 3])
def test_many_tiles_pass_through_one_cluster(config: GemmConfig, clusters: int, registry: Registry) -> None:
    """Hundreds of exchanges of one block with the same peers, of which some have no part of K."""
    for k in (1000, 64):
        case = make_case(config, 1500, 1900, k)
        sm_count = clusters * config.scheduler.splits
        launch = gemmill.plan(
            case.a.tensor, case.b.tensor, out=case.d.tensor, registry=registry, kernel=config, sm_count=sm_count
        )
        for _ in range(3):
            launch()
        torch.cuda.synchronize()
        assert launch.ctas == sm_count
        case.check()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("config", SIMPLE, ids=kernel_name)
def test_launches_without_a_pause_see_each_other(config: GemmConfig, captured: bool, registry: Registry) -> None:
    n, steps = 1024, 40
    start = torch.randint(-2, 3, (300, n), device="cuda").bfloat16()
    permute = torch.eye(n, device="cuda", dtype=torch.bfloat16)[torch.randperm(n, device="cuda")].T
    buffers = [start.clone(), torch.empty_like(start)]

    def chain() -> None:
        for step in range(steps):
            source, target = buffers[step % 2], buffers[1 - step % 2]
            gemmill.matmul(source, permute, out=target, registry=registry, kernel=config)

    chain()
    buffers[0].copy_(start)
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        graph.replay()
        buffers[0].copy_(start)
        graph.replay()
    else:
        chain()
    wanted = start.float()
    for _ in range(steps):
        wanted = wanted @ permute.float()
    assert torch.equal(buffers[0].float(), wanted)


def test_streams_threads_and_graphs_do_not_share_memory(registry: Registry) -> None:
    """Two streams at once, and a graph captured from one of them that is replayed on a third."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    cases = [product(384, 512, 4096 + 64 * i) for i in range(3)]
    for config in SIMPLE:
        graph_out = torch.empty_like(cases[2][2])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        gemmill.plan(*cases[2][:2], out=graph_out, registry=registry, kernel=config)
        with torch.cuda.graph(graph, stream=streams[0]):
            for _ in range(5):
                gemmill.matmul(*cases[2][:2], out=graph_out, registry=registry, kernel=config)
        outs = []
        for _ in range(30):
            for side, (a, b, wanted) in zip(streams[:2], cases[:2], strict=True):
                with torch.cuda.stream(side):
                    outs.append((gemmill.matmul(a, b, registry=registry, kernel=config), wanted))
            with torch.cuda.stream(streams[2]):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, wanted) for out, wanted in outs)
        assert torch.equal(graph_out, cases[2][2])


def test_a_workspace_grows_and_a_graph_gives_its_own_back(registry: Registry) -> None:
    small, large = product(128, 128, 512), product(2048, 2048, 512)
    for config in SIMPLE:
        for a, b, wanted in (small, large, small):
            assert torch.equal(gemmill.matmul(a, b, registry=registry, kernel=config), wanted)
    gc.collect()
    torch.cuda.synchronize()
    held = len(workspace._leases)
    graph = torch.cuda.CUDAGraph()
    out = torch.empty_like(large[2])
    with torch.cuda.graph(graph):
        gemmill.matmul(*small[:2], registry=registry, kernel=SIMPLE[0])
        gemmill.matmul(*large[:2], out=out, registry=registry, kernel=SIMPLE[0])
    assert len(workspace._leases) <= held + 2
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, large[2])
    mine = workspace._leases[-1]
    del graph
    gc.collect()
    torch.cuda.synchronize()
    # Another capture finds it free.
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        gemmill.matmul(*large[:2], out=out, registry=registry, kernel=SIMPLE[1])
    assert mine not in workspace._leases


def test_no_memory_is_an_error_that_says_so(registry: Registry) -> None:
    a = torch.zeros(1 << 16, 64, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(1 << 16, 1 << 16, device="cuda", dtype=torch.bfloat16)
    launch = gemmill.plan(a, a.T, out=out, registry=registry, kernel=split("64x64x64", "pingpong"), slices=100)
    says = (
        r"bytes of GPU memory for partial sums or copies of operands are not available: use a kernel with fewer slices"
    )
    with pytest.raises(DeviceError, match=says):
        launch()
    small = product(128, 128, 512)
    assert torch.equal(gemmill.matmul(*small[:2], registry=registry, kernel=SIMPLE[0]), small[2])
