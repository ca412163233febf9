"""The layers of experts that ``python -m benchmarks moe`` compares: PyTorch's, its tokens, and rates."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from benchmarks.moe import DISTRIBUTIONS, Layer, rates, tokens_of  # noqa: E402

from gemmill.profiler.baselines.experts import Experts, composed, reference  # noqa: E402
from gemmill.profiler.baselines.triton_experts import TILES, candidates  # noqa: E402

LAYER = Layer(hidden=64, inner=32, experts=16, slots=3)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_pytorchs_layer_gives_what_float64_gives(distribution: str) -> None:
    (tokens,) = tokens_of(LAYER, 40, distribution, 1)
    experts = Experts(torch.randn(16, 64, 64).bfloat16() / 8, torch.randn(16, 64, 32).bfloat16() / 8)
    if tokens.x.is_cuda:
        experts = Experts(*(x.cuda() for x in experts))
    sample = torch.arange(0, 40, 3)
    wanted = reference(tokens, experts, sample)
    found = composed(tokens, tokens.weights.bfloat16(), experts)[sample].double()
    assert (found - wanted).norm() < 2**-6 * wanted.norm()


def test_tokens_choose_experts_as_their_distribution_says() -> None:
    counts = {}
    for distribution in DISTRIBUTIONS:
        sets = [own.ids.long().cpu() for own in tokens_of(LAYER, 4000, distribution, 2)]
        counts[distribution] = [ids.flatten().bincount(minlength=16).sort(descending=True).values for ids in sets]
        assert not torch.equal(*sets)
        if distribution != "one":
            assert all(len(row.unique()) == 3 for row in sets[0][:100]), "a token has different experts"
    assert all(found[0] == 12000 for found in counts["one"])
    assert all(found[0] < 1.2 * found[-1] for found in counts["uniform"])
    assert all(found[0] > 4 * found[-1] for found in counts["zipf"])


def test_rates_count_the_experts_that_tokens_have() -> None:
    ids = torch.tensor([[0, 1, 2], [0, 1, 5]])
    found = rates(LAYER, ids, us=1.0)
    assert found["tflops"] == pytest.approx(2 * 3 * 64 * 32 * 6 / 1e6)
    assert found["of_dram"] == pytest.approx((4 * 3 * 64 * 32 + 2 * 2 * 64) * 2 / 4e6)


@pytest.mark.parametrize("rows", [1, 4, 64, 1024, 131072])
def test_each_number_of_rows_has_tiles_near_it(rows: int) -> None:
    found = candidates(rows)
    assert found
    assert min(max(rows, TILES[0].m), TILES[-1].m) in {tile.m for tile in found} or rows < TILES[0].m
