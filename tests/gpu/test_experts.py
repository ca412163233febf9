"""The layers of experts that ``python -m benchmarks moe`` compares with gemmill's."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.moe import DISTRIBUTIONS, Layer, drawn_e4m3, tokens_of
from tests.gpu.harness import torch

from gemmill.profiler.baselines.experts import Experts, composed, reference, scaled_by_rows
from gemmill.profiler.baselines.triton_experts import SCALED_TILES, TILES, TritonExperts
from gemmill.profiler.measure.graph_timing import capture

pytestmark = pytest.mark.gpu

LAYER = Layer(hidden=320, inner=192, experts=12, slots=4)
COUNT = 150


def right(found: Any, wanted: Any) -> bool:
    return bool((found.double() - wanted).norm() < 2**-6 * wanted.norm())


def test_baselines_of_e4m3_give_what_float64_gives_also_in_a_graph() -> None:
    pytest.importorskip("triton")
    layer = Layer(hidden=384, inner=256, experts=12, slots=4)
    (w1, of_w1), (w2, of_w2) = drawn_e4m3(12, 512, 384), drawn_e4m3(12, 384, 256)
    experts = Experts(w1, w2, of_w1, of_w2)
    tokens = tokens_of(layer, COUNT, "zipf", 2, "e4m3")
    wanted, stream = [reference(own, experts, torch.arange(COUNT)) for own in tokens], torch.cuda.Stream()

    def is_right(found: Any, wanted: Any) -> bool:
        return bool((found.double() - wanted).norm() < 2**-4 * wanted.norm())

    for tile in SCALED_TILES:
        outputs = [torch.full(own.x.shape, float("nan"), dtype=torch.bfloat16, device="cuda") for own in tokens]
        capture(TritonExperts(experts, tokens, outputs, tile), 2, 4, stream)
        assert all(map(is_right, outputs, wanted)), tile
    by_rows, of_rows = scaled_by_rows(experts, tokens)
    found: list[Any] = [None, None]

    def launch(i: int) -> None:
        found[i] = composed(of_rows[i], tokens[i].weights.bfloat16(), by_rows)

    graph = capture(launch, 2, 4, stream)
    assert all(map(is_right, found, wanted))
    del graph


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_baselines_give_what_float64_gives_also_in_a_graph(distribution: str) -> None:
    pytest.importorskip("triton")
    hidden, inner, count, _ = LAYER
    torch.manual_seed(0)
    gate_up = torch.randn(count, 2 * inner, hidden, device="cuda").bfloat16() / hidden**0.5
    experts = Experts(gate_up, torch.randn(count, hidden, inner, device="cuda").bfloat16() / inner**0.5)
    tokens = tokens_of(LAYER, COUNT, distribution, 2)
    wanted = [reference(own, experts, torch.arange(COUNT)) for own in tokens]
    stream = torch.cuda.Stream()
    for tile in TILES:
        outputs = [torch.full_like(own.x, float("nan")) for own in tokens]
        capture(TritonExperts(experts, tokens, outputs, tile), 2, 4, stream)
        assert all(map(right, outputs, wanted)), tile
    found: list[Any] = [None, None]

    def launch(i: int) -> None:
        found[i] = composed(tokens[i], tokens[i].weights.bfloat16(), experts)

    graph = capture(launch, 2, 4, stream)
    assert all(map(right, found, wanted))
    del graph
