"""``route`` and ``combine`` on a GPU, beside what NumPy gives to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cases.ptx import rounded
from tests.cases.routing import combined, routed
from tests.gpu.harness import torch

import gemmill

pytestmark = pytest.mark.gpu

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

SIZES = (
    (0, 8, 4),
    (5, 0, 4),
    (1, 1, 1),
    (64, 2, 1),
    (37, 8, 128),
    (300, 16, 40),
    (16384, 8, 128),
    (5000, 4, 257),
    (70000, 8, 12),
)


def ids_of(tokens: int, slots: int, experts: int, how: str) -> Any:
    generator = np.random.default_rng(tokens + slots)
    if how == "one":
        return np.full((tokens, slots), experts - 1)
    if how == "zipf":
        return generator.zipf(1.3, (tokens, slots)) - 1  # many are not below the number of experts
    return generator.integers(-1, experts, (tokens, slots))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("how", ["uniform", "zipf", "one"])
@pytest.mark.parametrize(("tokens", "slots", "experts"), SIZES)
def test_routes_are_those_of_a_stable_sort(tokens: int, slots: int, experts: int, how: str, dtype: Any) -> None:
    ids = ids_of(tokens, slots, experts, how) % (1 << 31)  # negative ids become large ones
    if dtype == torch.int64:
        ids[::3] += 1 << 32  # the low halves are ids of experts
    found = gemmill.route(torch.from_numpy(ids).to("cuda", dtype), experts)
    for name, got, wanted in zip(found._fields, found, routed(ids, experts), strict=True):
        assert np.array_equal(got.cpu().numpy(), wanted), name


def test_a_graph_routes_and_combines_what_the_ids_are_then() -> None:
    ids = torch.zeros(300, 8, dtype=torch.int32, device="cuda")
    y, weights = torch.randn(2400, 384, device="cuda"), torch.rand(300, 8, device="cuda")
    out = gemmill.route(ids, 64)
    sums = gemmill.combine(y, out.places, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmill.route(ids, 64, out=out)
        gemmill.combine(y, out.places, weights, out=sums)
    for seed in range(5):
        now = np.random.default_rng(seed).integers(-2, 66, (300, 8))
        ids.copy_(torch.from_numpy(now))
        graph.replay()
        for got, wanted in zip(out, routed(now, 64), strict=True):
            assert np.array_equal(got.cpu().numpy(), wanted)
        assert np.array_equal(sums.cpu().numpy(), combined(y.cpu().numpy(), routed(now, 64)[2], weights.cpu().numpy()))


@pytest.mark.parametrize(
    ("y", "out", "add", "weights"),
    [
        ("bf16", "bf16", None, "f32"),
        ("bf16", "f32", "bf16", "bf16"),
        ("f16", "f16", "f32", None),
        ("f32", "bf16", None, "f16"),
        ("f32", "f32", "f32", "f32"),
    ],
)
@pytest.mark.parametrize(
    ("columns", "slots", "offset"), [(2048, 8, 0), (2880, 4, 0), (130, 16, 1), (255, 1, 0), (64, 0, 0)]
)
def test_sums_are_those_of_the_stated_order(
    y: str, out: str, add: str | None, weights: str | None, columns: int, slots: int, offset: int
) -> None:
    tokens, height = 21, 60

    def drawn(rows: int, width: int, dtype: str) -> Any:
        """A matrix that begins some elements after an aligned address, in memory whose other elements are NaN."""
        pitch = width + offset
        memory = torch.full((rows * pitch + offset,), float("nan"), device="cuda", dtype=DTYPES[dtype])
        matrix = memory.as_strided((rows, width), (pitch, 1), offset)
        return matrix.copy_(torch.randn(rows, width, device="cuda"))

    rows = drawn(height, columns, y)
    factors = None if weights is None else drawn(slots, tokens, weights).mT
    first = None if add is None else drawn(tokens, columns, add)
    places = np.random.default_rng(columns).integers(-3, height + 3, (tokens, slots))
    result = drawn(tokens, columns, out)
    beyond = result.untyped_storage().nbytes() // result.element_size()
    gaps = torch.ones(beyond, dtype=torch.bool, device="cuda")
    gaps.as_strided(result.shape, result.stride(), offset).fill_(False)
    gemmill.combine(rows, torch.from_numpy(places).cuda(), factors, add=first, out=result)
    numbers = [None if x is None else x.float().cpu().numpy() for x in (rows, factors, first)]
    wanted = rounded(combined(numbers[0], places, *numbers[1:]), out)
    bits = result.contiguous().view(torch.int32 if out == "f32" else torch.int16).cpu().numpy()
    assert np.array_equal(bits.view(f"u{bits.itemsize}"), wanted.reshape(bits.shape).astype(f"u{bits.itemsize}"))
    assert result.as_strided((beyond,), (1,), 0)[gaps].isnan().all(), "nothing is written between the rows"


def test_sums_may_be_added_to_in_place() -> None:
    y, places = torch.randn(40, 512, device="cuda"), torch.arange(40, dtype=torch.int32, device="cuda")[:, None]
    out = torch.ones(40, 512, device="cuda")
    assert gemmill.combine(y, places, add=out, out=out) is out
    assert torch.equal(out, y + 1)


def test_a_layer_of_experts_is_what_each_token_gets() -> None:
    tokens, slots, experts, hidden = 333, 4, 16, 256
    x = torch.randint(-2, 3, (tokens, hidden), device="cuda").bfloat16()
    w = torch.randint(-1, 2, (experts, hidden, 128), device="cuda").bfloat16()
    ids = torch.rand(tokens, experts, device="cuda").topk(slots).indices
    weights = torch.full((tokens, slots), 0.25, device="cuda")
    offsets, rows, places = gemmill.route(ids, experts)
    y = gemmill.grouped_matmul(x[rows], w, offsets)  # whole numbers that bf16 has
    found = gemmill.combine(y, places, weights, out=torch.empty(tokens, 128, device="cuda"))
    wanted = torch.einsum("th,tshn->tn", x.float(), w.float()[ids]) / 4
    assert torch.equal(found, wanted)
