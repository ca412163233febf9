"""``lora`` on a GPU, to the bit: all sums are whole numbers, so only the stated roundings count."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import torch

import gemmill.torch
from gemmill.profiler.baselines.triton_adapters import TILES, Tile, TritonAdapters

pytestmark = pytest.mark.gpu

HIDDEN = 520


def drawn(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randint(-1, 2, shape, device="cuda").to(dtype)


def wanted(x: Any, a: Any, b: Any, ids: Any, y: Any, scale: Any, dtype: Any, *, grouped: bool = False) -> Any:
    """The definition. Rows between the products are rounded to the dtype of x; those of grouped products also before
    they are added to y."""
    used = ((ids >= 0) & (ids < len(a)))[:, None]
    at = ids.long().where(used[:, 0], 0)

    def rounded(values: Any) -> Any:
        return values.to(x.dtype).double() if grouped else values

    inner = torch.einsum("th,trh->tr", x.double(), a.double()[at]).to(x.dtype).double()
    products = torch.einsum("tr,tnr->tn", inner, b.double()[at])
    of_tokens = isinstance(scale, torch.Tensor)
    sums = rounded(products) * scale[:, None].double() if of_tokens else rounded(products * scale)
    terms = torch.where(used, sums, 0)
    return (terms if y is None else y.double() + terms).to(dtype)


@pytest.mark.parametrize("bits", ["any", "k16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rank", [8, 16, 24, 64, 72, 128, 136])
@pytest.mark.parametrize(("tokens", "adapters"), [(1, 1), (5, 128), (64, 3), (300, 40), (1000, 1)])
def test_tokens_get_the_products_of_their_adapters(
    tokens: int, adapters: int, rank: int, dtype: Any, bits: str
) -> None:
    torch.manual_seed(tokens + rank)
    for columns in (136, 1024):
        x, a = drawn(tokens, HIDDEN, dtype=dtype), drawn(adapters, rank, HIDDEN, dtype=dtype)
        b, y = drawn(adapters, columns, rank, dtype=dtype), drawn(tokens, columns, dtype=dtype)
        ids = torch.randint(-1, adapters + 1, (tokens,), device="cuda")
        ids[1::7] += 1 << 32  # no id, though its low half may be one
        scales = torch.tensor([0.5, 2.0, -1.0], device="cuda").repeat(tokens)[:tokens]
        grouped = bool(gemmill.plan_lora(x, a, b, ids, bits=bits).products)
        for scale in (0.5, scales):
            found = gemmill.lora(x, a, b, ids, y=y, scale=scale, bits=bits)
            assert torch.equal(found, wanted(x, a, b, ids, y, scale, dtype, grouped=grouped))
        sums = torch.full((tokens, columns), float("nan"), device="cuda")
        exact = wanted(x, a, b, ids, None, 1.0, torch.float32, grouped=grouped)
        gemmill.lora(x, a, b, gemmill.route(ids[:, None], adapters), out=sums, bits=bits)
        assert torch.equal(sums, exact)
        low = ids.where(ids < 1 << 31, -1).int()
        gemmill.lora(x, a, b, low, y=sums, out=sums, bits=bits)
        assert torch.equal(sums, 2 * exact)


@pytest.mark.parametrize("bits", ["any", "k16"])
def test_a_graph_holds_a_plan_for_all_ids(bits: str) -> None:
    tokens, adapters = 200, 9
    x, a, b, y = drawn(tokens, HIDDEN), drawn(adapters, 16, HIDDEN), drawn(adapters, 256, 16), drawn(tokens, 256)
    ids = torch.zeros(tokens, dtype=torch.int32, device="cuda")
    out = torch.empty_like(y)
    with gemmill.plan_lora(x, a, b, ids, y=y, scale=2.0, out=out, bits=bits) as plan:
        plan()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan()
        for high in (1, 4, adapters + 2):
            ids.random_(-1, high)
            x.copy_(drawn(tokens, HIDDEN))
            graph.replay()
            assert torch.equal(out, wanted(x, a, b, ids, y, 2.0, torch.bfloat16, grouped=bits != "any"))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_triton_baseline_adds_the_same(tile: Tile) -> None:
    torch.manual_seed(0)
    tokens, adapters = 150, 5
    x, a, b, y = drawn(tokens, HIDDEN), drawn(adapters, 8, HIDDEN), drawn(adapters, 136, 8), drawn(tokens, 136)
    ids = torch.randint(0, adapters, (tokens,), device="cuda", dtype=torch.int32)
    baseline = TritonAdapters(x, a, b, ids, y, 0.5, tile)
    baseline()
    assert torch.equal(baseline.out, wanted(x, a, b, ids, y, 0.5, torch.bfloat16))


def test_gradients_are_those_of_each_token() -> None:
    torch.manual_seed(0)
    tokens, adapters = 130, 6
    ids = torch.randint(-1, adapters, (tokens,), device="cuda")
    leaves = [drawn(tokens, 64), drawn(adapters, 8, 64), drawn(adapters, 72, 8), drawn(tokens, 72)]
    found = [x.clone().requires_grad_() for x in leaves]
    exact = [x.double().requires_grad_() for x in leaves]
    x, a, b, y = found
    gemmill.torch.lora(x, a, b, ids, y=y, scale=0.5).sum().backward()
    x, a, b, y = exact
    used = (ids >= 0)[:, None]
    at = ids.clamp(min=0)
    terms = torch.einsum("tnr,trh,th->tn", b[at], a[at], x)
    (y + torch.where(used, terms * 0.5, 0)).sum().backward()
    for leaf, one in zip(found, exact, strict=True):
        torch.testing.assert_close(leaf.grad.double(), one.grad, rtol=0.02, atol=0.02 * one.grad.abs().max().item())
