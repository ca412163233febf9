"""Experts of transformers' models on a GPU, converted and by ``experts_implementation="gemmill"``."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.gpu

from tests.torch.moe_models import MODELS, built, experts_of, in_blocks, prompt, tokens_for  # noqa: E402

import gemmill.torch  # noqa: E402

gemmill.torch.run_on_cpu()

LIMITS = {"called": 2**-6, "bf16": 2**-6, "f16": 2**-6, "e4m3_blocks": 0.08, "u4_g64": 0.3, "mxfp4": 0.3}
"""The ways to run experts, and the largest error of a layer relative to its norm."""


def of_form(model: Any, form: str) -> Any:
    """A copy of a model whose experts run on gemmill: ``called`` by transformers, or converted to a format."""
    model = copy.deepcopy(model)
    if form == "called":
        model.set_experts_implementation("gemmill")
        return model
    linear = [name for name, x in model.named_modules() if isinstance(x, torch.nn.Linear)]
    return gemmill.torch.convert(model, form, skip=linear)


def distance(found: Any, wanted: Any) -> float:
    return float((found.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())


@pytest.mark.parametrize("form", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_layers_beside_eager_ones_in_float64(name: str, form: str) -> None:
    plain = built(name, "cuda")
    layer = experts_of(of_form(plain, form))
    for count in (1, 40, 700):
        x, ids, weights = tokens_for(plain, count)
        wanted = copy.deepcopy(experts_of(plain)).double()(x.double(), ids, weights.double())
        with torch.no_grad():
            found = layer(x, ids, weights)
            assert found.dtype == torch.bfloat16
            assert distance(found, wanted) < LIMITS[form], count
            if form != "called" and count < 100:
                on_cpu = copy.deepcopy(layer).cpu()(x.cpu(), ids.cpu(), weights.cpu())
                assert distance(found.cpu(), on_cpu) < (0.03 if form == "e4m3_blocks" else 2**-6), count


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
def test_e4m3_of_checkpoints_beside_what_it_stands_for(scale_fmt: str) -> None:
    model = built("DeepSeek-V3")
    plain = experts_of(model)
    layer = gemmill.torch.convert(in_blocks(plain, scale_fmt), None).cuda()
    for count in (1, 40, 700):
        x, ids, weights = tokens_for(model, count)
        wanted = copy.deepcopy(plain).double()(x.double(), ids, weights.double())
        with torch.no_grad():
            assert distance(layer(x.cuda(), ids.cuda(), weights.cuda()).cpu(), wanted) < 0.08, count


@pytest.mark.parametrize("form", ["called", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_beside_eager_ones_in_float64(name: str, form: str) -> None:
    plain = built(name, "cuda")
    layer, wide = experts_of(of_form(plain, form)), copy.deepcopy(experts_of(plain)).double()
    x, ids, weights = tokens_for(plain, 300)
    g = torch.randn(x.shape, device="cuda")
    given, given_wide = (
        [t.to(dtype, copy=True).requires_grad_() for t in (x, weights)] for dtype in (x.dtype, torch.float64)
    )
    layer(given[0], ids, given[1]).backward(g.to(x.dtype))
    wide(given_wide[0], ids, given_wide[1]).backward(g.to(x.dtype).double())
    for found, wanted in zip(given, given_wide, strict=True):
        assert distance(found.grad, wanted.grad) < 2**-5
    gate_up, down = wide.gate_up_proj.grad, wide.down_proj.grad
    if form == "called":
        assert distance(layer.gate_up_proj.grad, gate_up) < 2**-5
        assert distance(layer.down_proj.grad, down) < 2**-5
        return
    if wide.is_transposed:
        gate_up, down = gate_up.mT, down.mT
    if not wide.is_concatenated:
        gate_up = torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), 1)
    assert distance(layer.w1.grad, gate_up) < 2**-5
    assert distance(layer.w2.grad, down) < 2**-5
    if layer.b2 is not None:
        assert distance(layer.b2.grad, wide.down_proj_bias.grad) < 2**-5
        assert distance(layer.gate_bias.grad, wide.gate_up_proj_bias.grad[:, ::2]) < 2**-5


@pytest.mark.parametrize("form", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_holds_a_layer_for_other_tokens(name: str, form: str) -> None:
    plain = built(name, "cuda")
    layer = experts_of(of_form(plain, form))
    x, ids, weights = tokens_for(plain)
    with torch.no_grad():
        wanted = layer(x, ids, weights)
        given = x.flip(0), torch.zeros_like(ids), weights.flip(0)
        layer(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = layer(*given)
    for tensor, value in zip(given, (x, ids, weights), strict=True):
        tensor.copy_(value)
    graph.replay()
    assert torch.equal(captured, wanted)


@pytest.mark.parametrize("form", ["called", "bf16", "mxfp4"])
def test_generation_with_a_static_cache(form: str) -> None:
    """transformers compiles its steps, and replays them as CUDA graphs."""
    torch.compiler.reset()
    model = of_form(built("Qwen3-MoE", "cuda"), form)
    ids = prompt(model)
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    options |= {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
    wanted, found = (model.generate(ids, **options, **more) for more in ({}, {"cache_implementation": "static"}))
    assert found.sequences.shape == wanted.sequences.shape
    assert torch.equal(found.sequences[:, : ids.shape[1] + 1], wanted.sequences[:, : ids.shape[1] + 1])
    for x, y in zip(found.logits[:2], wanted.logits[:2], strict=True):
        assert distance(x, y) < 2**-4


@pytest.mark.parametrize("form", ["called", "bf16", "e4m3_blocks", "mxfp4"])
def test_compiled_layers(form: str) -> None:
    plain = built("Qwen3-MoE", "cuda")
    layer = experts_of(of_form(plain, form))
    given = tokens_for(plain)
    torch.compiler.reset()
    with torch.no_grad():
        wanted = layer(*given)
        compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            assert distance(compiled(*given), wanted) < 2**-6
