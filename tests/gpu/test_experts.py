"""The layers of experts that ``python -m benchmarks moe`` compares with gemmill's."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.moe import DISTRIBUTIONS, Layer, tokens_of
from tests.gpu.harness import torch

from gemmill.profiler.baselines.experts import Experts, composed, reference
from gemmill.profiler.baselines.triton_experts import TILES, TritonExperts
from gemmill.profiler.measure.graph_timing import capture

pytestmark = pytest.mark.gpu

LAYER = Layer(hidden=320, inner=192, experts=12, slots=4)
COUNT = 150


def right(found: Any, wanted: Any) -> bool:
    return bool((found.double() - wanted).norm() < 2**-6 * wanted.norm())


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
