"""Split-K: one cubin for any number of slices of K."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import check, kernel, make_case, poison_workspace, product, run, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SLICES
from gemmill.library.epilogues.parse import canonical
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


def splitk(tile: str = "128x128x64", *options: str, **fields: Any) -> GemmConfig:
    return kernel(tile, *options, scheduler__decomposition="splitk", **fields)


KERNELS: tuple[GemmConfig, ...] = (
    splitk(),
    splitk("64x64x64", "pingpong"),
    splitk("128x256x64", "cooperative", "2x1"),
    splitk("256x96x64", "cooperative", "1x2", a__major="mn", b__major="mn"),
    splitk("64x32x64", "pingpong", d__align=2),
    splitk(d__major="m", c__dtype="bf16", c__major="n"),
    splitk(c__dtype="f32", c__major="m", d__align=8),
    splitk("64x80x64", "pingpong", d__dtype="f32", d__major="m"),
    splitk("64x128x128", "pingpong", ab="s8", d__dtype="s8", d__align=1),
    splitk("128x128x128", ab="e4m3", promote=4, a__scale="1x128", b__scale="128x128"),
    splitk("128x128x32", ab="tf32"),
)
SOME = (2, 3, 9, 20, 40, 256)
"""Every form of the reduction: 1, 2, 4 and 8 threads a vector, all of them with as many slices or with fewer."""


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm(KERNELS)
    return shared


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
@pytest.mark.parametrize("slices", SOME)
def test_random_data_has_the_same_bits_each_time(config: GemmConfig, slices: int, registry: Registry) -> None:
    for m, n, k in ((300, 264, 4096), (257, 136, 1000)):
        case = make_case(config, m, n, k, data="random")
        out, found = case.d.tensor, []
        for _ in range(2):
            out.fill_(float("nan") if out.is_floating_point() else -1)
            run(config, case, registry, slices=slices)
            case.check()
            found.append(out.clone(memory_format=torch.contiguous_format).view(torch.uint8))
        assert torch.equal(*found)


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_every_element_is_exact(config: GemmConfig, registry: Registry) -> None:
    for slices in (1, *SLICES):
        check(config, 257, 136, 72, registry, slices=slices)  # two K tiles, and empty slices
        check(config, 304, 200, 2000, registry, slices=slices)
    for slices in (5, 33):
        check(config, 1, 8, 8, registry, slices=slices)
        check(config, 130, 200, 264, registry, slices=slices, batch=3, batched="ad", alpha=2.0)
        if (config.a.major, config.b.major, config.a.scale) == ("k", "k", "none"):
            check(config, 200, 136, 0, registry, slices=slices)


def test_an_output_of_any_alignment(registry: Registry) -> None:
    a, b, wanted = product(130, 75, 4096)
    for slices in (3, 17, 100):
        whole = torch.full((131 * 75,), float("nan"), device="cuda", dtype=torch.bfloat16)
        out = whole[1 : 1 + 130 * 75].view(130, 75)
        gemmill.matmul(a, b, out=out, registry=registry, kernel=splitk(d__align=2), slices=slices)
        assert torch.equal(out, wanted)
        assert whole[0].isnan()
        assert whole[1 + 130 * 75 :].isnan().all()


def test_an_expression(registry: Registry) -> None:
    a, b, _ = product(200, 300, 2000)
    bias = torch.randn(300, device="cuda", dtype=torch.bfloat16)
    text = "d = relu(acc + bias.bf16[n])"
    config = splitk(epilogue=canonical(text))
    wanted = (a.float() @ b.float() + bias.float()).relu()
    for slices in (3, 24, 100):
        out = gemmill.matmul(a, b, epilogue=text, bias=bias, registry=registry, kernel=config, slices=slices)
        torch.testing.assert_close(out, wanted.bfloat16())


def test_numbers_beside_each_other_share_a_module_and_a_workspace(registry: Registry) -> None:
    a, b, wanted = product(256, 256, 8192)
    config = splitk()
    outs = [torch.empty_like(wanted) for _ in SLICES]
    plans = [
        gemmill.plan(a, b, out=out, registry=registry, kernel=config, slices=slices)
        for out, slices in zip(outs, SLICES, strict=True)
    ]
    for _ in range(3):
        poison_workspace(a.device)
        for launch in (*plans, *reversed(plans)):
            launch()
        torch.cuda.synchronize()
        for out in outs:
            assert torch.equal(out, wanted)
            out.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in plans:
            launch()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, wanted) for out in outs)
    assert [launch.slices for launch in plans] == [*SLICES]


def test_a_kernel_named_without_a_number_has_the_models(registry: Registry) -> None:
    config = splitk()
    for m, n, k in ((128, 128, 32768), (512, 640, 4096)):
        a, b, wanted = product(m, n, k)
        with gemmill.plan(a, b, registry=registry, kernel=config) as launch:
            launch()
            torch.cuda.synchronize()
            assert torch.equal(launch.out, wanted)
            assert launch.kernel == config
            assert launch.slices in SLICES
        # Of a D that is contiguous along M the transpose is run.
        check(splitk(d__major="m"), m, n, 1024, registry)
