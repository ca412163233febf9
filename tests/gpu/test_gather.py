"""Groups of rows that the kernel gathers by an index: the bits of a permuted copy, and nothing else read or written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gpu.groups import SCALED, along_k, ends, fill, stacked
from tests.gpu.harness import guarded, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.epilogues.parse import canonical
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


def gathered(tile: str, schedule: str = "cooperative", cluster: str = "1x1", **fields: Any) -> GemmConfig:
    """A kernel for groups of rows that an index names."""
    return stacked(tile, schedule, cluster, scheduler__rows="gathered", **fields)


GATE, HALVES = canonical("d = silu(gate) * up"), canonical("d = silu(gate_half) * up_half")
GATHERED = (
    gathered("128x256x64", cluster="2x1"),
    gathered("128x256x64", cluster="1x1", b__major="mn", scheduler__swizzle_size=8),
    gathered("128x128x64", "pingpong"),
    gathered("128x192x64", "pingpong", cluster="2x1"),
    gathered("64x128x64", "pingpong", cluster="4x1"),
    gathered("64x256x64", "pingpong", stages=2),
    gathered("128x128x64", c__dtype="f32", ab="f16", d__dtype="f32", scheduler__raster="n"),
    gathered("128x128x128", ab="e4m3", d__dtype="bf16", promote=4),
    gathered("64x64x64", "pingpong", cluster="2x1"),
    gathered("64x8x256", "pingpong"),
    gathered("64x32x256", "pingpong", d__dtype="f32"),
    gathered("128x64x128", "pingpong", cluster="2x1"),
    gathered("128x256x64", cluster="2x1", epilogue=GATE),
    gathered("128x256x128", cluster="2x1", stages=3, **SCALED),
    gathered("128x128x128", **SCALED),
    gathered("64x128x128", "pingpong", **SCALED),
    gathered("64x256x128", "pingpong", cluster="2x1", **SCALED),
)
SIZES = {
    "one": [200],
    "ragged": [1, 0, 64, 63, 65, 128, 0, 0, 129, 7, 256, 300, 0],
    "small": [i % 5 for i in range(70)],
    "empty": [0, 0, 0],
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm((*GATHERED, *map(stored, GATHERED)))
    return shared


def stored(config: GemmConfig) -> GemmConfig:
    """The kernel of the same tile that reads rows in order."""
    return replace(config, scheduler=replace(config.scheduler, rows="stored"))


def bits(tensor: Any) -> Any:
    """Elements as integers, of which NaNs are equal too."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def options(config: GemmConfig, registry: Registry) -> dict[str, Any]:
    """Keywords of a call that names a kernel."""
    return {
        "registry": registry,
        "fast_accumulation": config.promote == 0,
        "epilogue": None if config.epilogue == "linear" else config.epilogue,
    }


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("config", GATHERED, ids=kernel_name)
def test_gathered_rows_have_the_bits_of_a_permuted_copy(config: GemmConfig, sizes: str, registry: Registry) -> None:
    """With duplicates, entries outside A, which count as its last row, ends of groups beyond D, and int64 indices."""
    values, tokens = ends(*SIZES[sizes]), 90
    dtype, unit = config.a.dtype, 16 // config.a.type.bytes
    for n, k in ((264, 25 * unit + 3), (136, 8 * unit), (272, 9 * unit)):
        m = values[-1] + 5
        a = guarded(tokens, k, dtype)
        b = guarded(k, n, dtype, columns_contiguous=config.b.major == "mn", batch=len(values))
        d = guarded(m, n // 2 if config.epilogue == GATE else n, config.d.dtype)
        for x in (a, b):
            fill(x.tensor, False)
        c = torch.randn(m, n, device="cuda").to(d.tensor.dtype) if config.c else None
        index = torch.randint(0, tokens, (m,), device="cuda")
        index[::7] = torch.tensor([tokens, -1, 1 << 30, -(1 << 31)], device="cuda").repeat(m)[: len(index[::7])]
        offsets = torch.tensor(values, dtype=torch.int32, device="cuda")
        before = a.buffer.clone(), b.buffer.clone()
        words = options(config, registry) | {"c": c}
        inside = index.clamp(max=tokens - 1).where(index >= 0, tokens - 1)
        of_tokens: dict[str, Any] = {}
        of_copy: dict[str, Any] = {}
        if config.a.scale != "none":
            words["b_scale"] = torch.rand(len(values), -(-k // 128), -(-n // 128), device="cuda") + 0.5
            of_tokens["a_scale"] = torch.rand(tokens, -(-k // 128), device="cuda") + 0.5
            of_copy["a_scale"] = of_tokens["a_scale"][inside]
        for rows in (index, index.int(), torch.stack((index, index * 0), 1).int()[:, 0]):
            d.tensor.fill_(float("nan"))
            gemmill.grouped_matmul(
                a.tensor, b.tensor, offsets, rows=rows, out=d.tensor, kernel=config, **words, **of_tokens
            )
            copy = guarded(m, k, dtype).tensor  # whose rows are aligned
            bits(copy).copy_(bits(a.tensor)[inside])
            wanted = torch.full_like(d.tensor, float("nan"))
            gemmill.grouped_matmul(copy, b.tensor, offsets, out=wanted, kernel=stored(config), **words, **of_copy)
            torch.cuda.synchronize()
            assert torch.equal(bits(d.tensor), bits(wanted))
            assert d.intact(), "memory around D was written"
        assert torch.equal(a.buffer, before[0])
        assert torch.equal(b.buffer, before[1])


def test_gathered_rows_with_scales_and_a_gate_of_halves() -> None:
    config = gathered("128x256x128", epilogue=HALVES, **SCALED)
    groups, tokens, n, k = 3, 90, 1536, 640
    b = torch.randn(groups, n, k, device="cuda").to(torch.float8_e4m3fn).mT
    a, index = torch.randn(tokens, k, device="cuda").to(torch.float8_e4m3fn), torch.randint(0, tokens, (300,)).cuda()
    a_scale, b_scale = torch.rand(tokens, k // 128).cuda() + 0.5, torch.rand(groups, k // 128, n // 128).cuda() + 0.5
    offsets = torch.tensor([140, 140, 300], dtype=torch.int32, device="cuda")
    words: dict[str, Any] = {"epilogue": HALVES, "fast_accumulation": False, "b_scale": b_scale}
    found = gemmill.grouped_matmul(a, b, offsets, rows=index, a_scale=a_scale, kernel=config, **words)
    copy = a.view(torch.uint8)[index].view(a.dtype)
    wanted = gemmill.grouped_matmul(copy, b, offsets, a_scale=a_scale[index], kernel=stored(config), **words)
    assert torch.equal(bits(found), bits(wanted))


def test_many_launches_have_the_same_bits_with_scales(registry: Registry) -> None:
    """Scales of a stage are read before the next lap's copies overwrite them."""
    groups, tokens, n, k = 8, 700, 768, 4096
    sizes = [0, 1, 900, 17, 64, 300, 129, 511]
    b = torch.randn(groups, n, k, device="cuda").to(torch.float8_e4m3fn).mT
    b_scale = torch.rand(groups, k // 128, n // 128, device="cuda") + 0.5
    offsets = torch.tensor(ends(*sizes), dtype=torch.int32, device="cuda")
    index = torch.zeros(sum(sizes), dtype=torch.int32, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    words: dict[str, Any] = {"b_scale": b_scale, "registry": registry, "fast_accumulation": False}
    for config in GATHERED[-4:]:
        for _ in range(50):
            a = torch.randn(tokens, k, device="cuda").to(torch.float8_e4m3fn)
            a_scale = torch.rand(tokens, k // 128, device="cuda") + 0.5
            index.random_(0, tokens)
            found = gemmill.grouped_matmul(a, b, offsets, rows=index, a_scale=a_scale, kernel=config, **words)
            copy, of_copy = a.view(torch.uint8)[index.long()].view(a.dtype), a_scale[index.long()]
            wanted = gemmill.grouped_matmul(copy, b, offsets, a_scale=of_copy, kernel=stored(config), **words)
            wrong += (bits(found) != bits(wanted)).sum()
    assert wrong.item() == 0


@pytest.mark.parametrize("config", GATHERED[:6], ids=kernel_name)
def test_many_launches_have_the_same_bits(config: GemmConfig, registry: Registry) -> None:
    """MMAs read through another proxy than copies write; every launch reads what its own copies wrote."""
    groups, tokens, n, k = 16, 700, 768, 2048
    sizes = [0, 1, 900, 17, 64, 300, 129, 0, 511, 80, 256, 33, 700, 5, 128, 172]
    m = sum(sizes)
    b = torch.randn(groups, n, k, device="cuda").to(torch.bfloat16).mT
    b = b if config.b.major == "k" else b.contiguous()
    offsets = torch.tensor(ends(*sizes), dtype=torch.int32, device="cuda")
    index = torch.zeros(m, dtype=torch.int32, device="cuda")
    a = torch.empty(tokens, k, device="cuda", dtype=torch.bfloat16)
    found, wanted = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    with gemmill.plan(a, b, offsets=offsets, rows=index, out=found, kernel=config, registry=registry) as plan:
        for _ in range(150):
            a.normal_()
            index.random_(0, tokens)
            plan()
            copy = a[index.long()]
            gemmill.grouped_matmul(copy, b, offsets, out=wanted, kernel=stored(config), registry=registry)
            wrong += (bits(found) != bits(wanted)).sum()
    assert wrong.item() == 0


ALONG_K = (
    along_k("128x256x64", scheduler__rows="gathered"),
    along_k("128x256x64", scheduler__rows="gathered", d__major="m"),
    along_k("128x128x64", "pingpong", scheduler__rows="gathered", d__dtype="f32", c__dtype="f32"),
    along_k("64x64x32", "pingpong", scheduler__rows="gathered", ab="f16"),
)


@pytest.fixture(scope="module")
def registry_of_groups_along_k() -> Registry:
    shared = Registry()
    shared.warm((*ALONG_K, *map(stored, ALONG_K)))
    return shared


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("config", ALONG_K, ids=kernel_name)
def test_gathered_columns_have_the_bits_of_a_permuted_copy(
    config: GemmConfig, sizes: str, registry_of_groups_along_k: Registry
) -> None:
    values, tokens = ends(*SIZES[sizes]), 90
    shared = registry_of_groups_along_k
    for m, n in ((264, 136), (72, 520), (128, 256)):
        k = values[-1] + 5
        a = guarded(m, tokens, config.a.dtype, columns_contiguous=False)
        b = guarded(k, n, config.b.dtype)
        d = guarded(m, n, config.d.dtype, columns_contiguous=config.d.major == "n", batch=len(values))
        for x in (a, b):
            fill(x.tensor, False)
        c = torch.randn(len(values), m, n, device="cuda").to(d.tensor.dtype) if config.c else None
        index = torch.randint(0, tokens, (k,), device="cuda")
        index[::7] = torch.tensor([tokens, -1, 1 << 30, -(1 << 31)], device="cuda").repeat(k)[: len(index[::7])]
        offsets = torch.tensor(values, dtype=torch.int32, device="cuda")
        before = a.buffer.clone(), b.buffer.clone()
        inside = index.clamp(max=tokens - 1).where(index >= 0, tokens - 1)
        copy = guarded(m, k, config.a.dtype, columns_contiguous=False).tensor
        bits(copy).copy_(bits(a.tensor)[:, inside])
        wanted = torch.empty_strided(d.tensor.shape, d.tensor.stride(), dtype=d.tensor.dtype, device="cuda")
        gemmill.grouped_matmul(copy, b.tensor, offsets, out=wanted, c=c, kernel=stored(config), registry=shared)
        for rows in (index, index.int()):
            d.tensor.fill_(float("nan"))
            out = d.tensor
            gemmill.grouped_matmul(a.tensor, b.tensor, offsets, rows=rows, out=out, c=c, kernel=config, registry=shared)
            torch.cuda.synchronize()
            assert torch.equal(bits(out), bits(wanted))
            assert d.intact(), "memory around D was written"
        assert torch.equal(a.buffer, before[0])
        assert torch.equal(b.buffer, before[1])


def test_gradients_of_weights_read_tokens_by_an_index() -> None:
    """Of groups of rows that an index names, in bf16: the selector finds a kernel for the gradient too."""
    groups, tokens, n, k = 8, 256, 264, 512
    a = torch.randint(-2, 3, (tokens, k), device="cuda").bfloat16().requires_grad_()
    w = torch.randint(-2, 3, (groups, n, k), device="cuda").bfloat16().requires_grad_()
    index = torch.arange(1000, device="cuda", dtype=torch.int32) * 7 % tokens
    offsets = torch.arange(1, 9, device="cuda", dtype=torch.int32) * 125
    g = torch.randint(-1, 2, (1000, n), device="cuda").bfloat16()
    gemmill.grouped_matmul(a, w.mT, offsets, rows=index).backward(g)
    of_rows = torch.einsum("gmn,gnk->gmk", g.view(8, 125, n).double(), w.double()).view(1000, k)
    of_a = torch.zeros(tokens, k, device="cuda", dtype=torch.float64).index_add(0, index, of_rows)
    of_w = torch.einsum("gmn,gmk->gnk", g.view(8, 125, n).double(), a[index].view(8, 125, k).double())
    torch.testing.assert_close(a.grad.double(), of_a, rtol=0.02, atol=4)
    torch.testing.assert_close(w.grad.double(), of_w, rtol=0.01, atol=0)


def test_the_selector_finds_a_kernel_and_a_graph_holds_it() -> None:
    groups, tokens, n, k = 8, 256, 1024, 512
    a, w = torch.randn(tokens, k, device="cuda").half(), torch.randn(groups, n, k, device="cuda").half().mT
    index, offsets = torch.arange(1000, device="cuda") * 7 % tokens, torch.arange(1, 9, device="cuda") * 125
    d = gemmill.grouped_matmul(a, w, offsets, rows=index)
    assert torch.equal(d, gemmill.grouped_matmul(a[index], w, offsets, bits="k16"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmill.grouped_matmul(a, w, offsets, rows=index, out=d)
    index.copy_(index.flip(0))
    offsets[3] = 400
    graph.replay()
    assert torch.equal(d, gemmill.grouped_matmul(a[index], w, offsets, bits="k16"))
