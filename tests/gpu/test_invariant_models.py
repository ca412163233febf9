"""Language models whose logits for a prompt have the same bits in every batch, in chunks, by steps and in a graph.

Only products are gemmill's: the models of language_models.py compute all else row by row, by PyTorch's eager kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.gpu

from tests.gpu.language_models import built, causal_mask, logits, logits_in_chunks, prompts  # noqa: E402

import gemmill.torch  # noqa: E402

TOKENS, CAPACITY = 24, 32
BATCHES = (2, 48)


@pytest.fixture(scope="module", params=["Llama", "Qwen3-MoE eager", "Qwen3-MoE grouped_mm", "Qwen3-MoE gemmill"])
def model(request: pytest.FixtureRequest) -> Any:
    name, _, experts = request.param.partition(" ")
    return built(name, experts=experts or "eager")


@pytest.fixture(autouse=True)
def invariant() -> Iterator[None]:
    gemmill.torch.reset_stats()
    with gemmill.torch.enabled(bits="invariant"):
        yield
    fallback = gemmill.torch.stats().fallback
    assert {reason for lines in fallback.values() for reason in lines} <= {"an operand is empty"}


def assert_same_bits(found: Any, wanted: Any) -> None:
    """For the first and the last prompt of a batch."""
    for place in (0, -1):
        assert torch.equal(found[place].view(torch.int16), wanted[0].view(torch.int16)), place


def test_in_batches_in_chunks_and_by_steps(model: Any) -> None:
    alone = logits(model, prompts(model, 1, TOKENS))
    cached = logits_in_chunks(model, prompts(model, 1, TOKENS), (TOKENS,), CAPACITY)
    for batch in BATCHES:
        assert_same_bits(logits(model, prompts(model, batch, TOKENS)), alone)
    assert_same_bits(logits_in_chunks(model, prompts(model, 3, TOKENS), (8, 13, 1, 1, 1), CAPACITY), cached)


def test_in_a_graph(model: Any) -> None:
    if hasattr(model.config, "num_experts") and model.config._experts_implementation == "eager":
        pytest.skip("the loop over experts reads their number on the host")
    alone, ids = logits(model, prompts(model, 1, TOKENS)), prompts(model, 2, TOKENS)
    mask = causal_mask(TOKENS)
    logits(model, ids, mask)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = logits(model, ids, mask)
    graph.replay()
    assert_same_bits(captured, alone)


def test_compiled_products_and_what_is_fused_with_them() -> None:
    """Rows of any number have the same bits; with the roundings of eager mode, those of eager mode."""
    draw = torch.Generator("cuda").manual_seed(0)
    x, gate, up, down = (
        torch.randn(*shape, generator=draw, device="cuda").bfloat16()
        for shape in ((96, 512), (512, 1024), (512, 1024), (1024, 512))
    )

    def block(x: Any) -> Any:
        return x + (torch.relu(x @ gate) * (x @ up)) @ down

    for is_emulated in (False, True):
        torch.compiler.reset()
        with torch._inductor.config.patch(emulate_precision_casts=is_emulated):
            compiled = torch.compile(block, dynamic=False, fullgraph=True)
            whole = compiled(x)
            assert torch.equal(compiled(x[:3]), whole[:3])
            assert not is_emulated or torch.equal(block(x), whole)
