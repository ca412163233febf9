"""The layers of experts that ``python -m benchmarks moe`` compares: PyTorch's, its tokens, and rates."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from benchmarks.moe import DISTRIBUTIONS, FORMATS, Layer, rates, tokens_of  # noqa: E402

from gemmill.profiler.baselines.experts import Experts, composed, reference, scaled_by_rows  # noqa: E402
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


def test_pytorch_gets_the_numbers_of_e4m3_layers_with_scales_of_rows() -> None:
    layer = Layer(hidden=256, inner=128, experts=6, slots=2)
    (tokens,) = tokens_of(layer, 20, "uniform", 1, "e4m3")
    drawn: list[Any] = []
    for n, k in ((256, 256), (256, 128)):
        drawn.append((torch.randn(6, n, k) * 64).to(torch.float8_e4m3fn).to(tokens.x.device))
        drawn.append(torch.randint(-11, -8, (6, n // 128, k // 128)).float().exp2().to(tokens.x.device))
    experts = Experts(*drawn[::2], *drawn[1::2])
    by_rows, (of_tokens,) = scaled_by_rows(experts, [tokens])
    assert (of_tokens.x_scale.shape, by_rows.gate_up_scale.shape, by_rows.down_scale.shape) == (
        (20,),
        (6, 256),
        (6, 256),
    )
    wide = Experts(*(x.double() * scale[..., None] for x, scale in zip(by_rows[:2], by_rows[2:], strict=True)))
    sample = torch.arange(20)
    wanted = reference(tokens, experts, sample)
    found = reference(tokens._replace(x=of_tokens.x.double() * of_tokens.x_scale[:, None], x_scale=None), wide, sample)
    assert (found - wanted).norm() < 2**-10 * wanted.norm()


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
    of_e4m3 = rates(LAYER, ids, us=1.0, form=FORMATS["e4m3"])["of_dram"]
    weights, tokens = 4 * 3 * 64 * 32 * (1 + 4 / 128**2), 2 * 64 * (1 + 4 / 128 + 2)
    assert of_e4m3 == pytest.approx((weights + tokens) / 4e6)


@pytest.mark.parametrize("rows", [1, 4, 64, 1024, 131072])
def test_each_number_of_rows_has_tiles_near_it(rows: int) -> None:
    found = candidates(rows)
    assert found
    assert min(max(rows, TILES[0].m), TILES[-1].m) in {tile.m for tile in found} or rows < TILES[0].m
