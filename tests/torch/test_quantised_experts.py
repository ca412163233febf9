"""Experts that transformers' models hold quantised: converted, they keep the checkpoint's values. On the CPU."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.torch.moe_models import built, experts_of, in_blocks, prompt, tokens_for  # noqa: E402
from transformers.integrations import mxfp4 as of_mxfp4  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402
from gemmill.runtime.torch.layers.expert_tensors import Order  # noqa: E402


@pytest.fixture(autouse=True)
def on_the_cpu() -> None:
    gemmill.torch.run_on_cpu()


def distance(found: Any, wanted: Any) -> float:
    return float((found.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())


def quietly(model: Any, weights: str | None, **options: Any) -> Any:
    """A converted model, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return gemmill.torch.convert(model, weights, **options)


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
@pytest.mark.parametrize("weights", ["mxfp4", None])
@pytest.mark.parametrize("name", ["DeepSeek-V3", "Qwen3-MoE"])
def test_e4m3_with_scales_of_blocks_keeps_its_values(name: str, weights: str | None, scale_fmt: str) -> None:
    model = built(name)
    plain, given = experts_of(model), tokens_for(model)
    module = in_blocks(plain, scale_fmt)
    layer = quietly(module, weights)
    assert (type(layer), layer.weights) == (gemmill.torch.Experts, "e4m3_blocks")
    for ours, theirs in (("w1", "gate_up_proj"), ("w2", "down_proj")):
        held = getattr(module, theirs)
        assert getattr(layer, ours).data_ptr() == held.data_ptr(), "no copy"
        assert torch.equal(getattr(layer, f"{ours}_scale"), getattr(module, f"{theirs}_scale_inv").float())
    assert distance(layer(*given), plain(*given)) < 0.08
    again = gemmill.torch.convert(plain, "e4m3_blocks", inplace=False)
    with torch.no_grad():
        for x in again.parameters():
            x.view(torch.uint8).zero_()
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(*given), layer(*given)), "the checkpoint loads without quantising again"


def in_mxfp4(model: Any) -> dict[str, Any]:
    """Replace the experts of gpt-oss by transformers' quantised ones as they are after loading, with the parent that
    calls them. Returns the tensors of the checkpoint of the last layer."""
    draw = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        plain = layer.mlp.experts
        module = of_mxfp4.Mxfp4GptOssExperts(model.config)
        tensors: dict[str, Any] = {}
        for name in ("gate_up_proj", "down_proj"):
            n, k = getattr(plain, name).mT.shape[1:]
            blocks = torch.randint(0, 256, (8, n, k // 32, 16), dtype=torch.uint8, generator=draw)
            scales = torch.randint(121, 125, (8, n, k // 32), dtype=torch.uint8, generator=draw)
            with torch.no_grad():
                getattr(plain, name).copy_(of_mxfp4.convert_moe_packed_tensors(blocks, scales))
                getattr(module, f"{name}_bias").copy_(getattr(plain, f"{name}_bias"))
            del module._parameters[name]
            setattr(module, name, of_triton_kernels(blocks.flatten(2).mT))
            config = SimpleNamespace(weight_scale=of_triton_kernels(scales.mT))
            setattr(module, f"{name}_precision_config", config)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            tensors[f"{name}_bias"] = getattr(plain, f"{name}_bias").detach()
        layer.mlp = of_mxfp4.Mxfp4GptOssMLP(layer.mlp.router, module)
    return tensors


def test_transformers_calls_gemmill_for_e4m3() -> None:
    model = built("Qwen3-MoE", experts="gemmill")
    module, given = in_blocks(experts_of(model), "float"), tokens_for(model)
    assert module.config._experts_implementation == "gemmill"
    assert torch.equal(module(*given), quietly(module, None)(*given))
    module.activation_scheme = "static"
    with pytest.raises(OperandError, match="experts with scales of activations"):
        module(*given)


def of_triton_kernels(data: Any) -> Any:
    """What of its tensors transformers reads; its layouts for a GPU permute the data."""
    layout = SimpleNamespace(unswizzle_data=lambda x: x.flip(1))
    return SimpleNamespace(storage=SimpleNamespace(layout=layout, data=data.flip(1)))


@pytest.mark.skipif(not hasattr(of_mxfp4, "Mxfp4GptOssMLP"), reason="transformers before 5.24 has another parent")
@pytest.mark.parametrize("weights", ["mxfp4", "bf16", None])
def test_mxfp4_of_gpt_oss_keeps_its_values(weights: str | None) -> None:
    plain = built("gpt-oss")
    model = copy.deepcopy(plain)
    for layer, of_plain in zip(model.model.layers, plain.model.layers, strict=True):
        layer.mlp.experts = of_plain.mlp.experts  # which gets the values of the checkpoint
    tensors = in_mxfp4(model)
    quietly(model, weights, **({} if weights is None else {"skip": ("lm_head", "*.router", "*_proj")}))
    layer, given = experts_of(model), tokens_for(plain)
    assert (type(layer), layer.weights) == (gemmill.torch.Experts, "mxfp4")
    assert distance(layer(*given), experts_of(plain)(*given)) < 2**-6
    ids = prompt(plain)
    with torch.no_grad():
        found, wanted = (x(input_ids=ids, use_cache=False).logits for x in (model, plain))
    assert distance(found, wanted) < 2**-5
    again = copy.deepcopy(layer)
    with torch.no_grad():
        for x in again.parameters():
            x.view(torch.uint8).zero_()
    again.load_state_dict(tensors)
    assert torch.equal(again(*given), layer(*given)), "the checkpoint loads without quantising again"


def test_a_gate_with_a_cap_is_left() -> None:
    module = in_blocks(experts_of(built("Qwen3-MoE")), "float")
    module.gate_softcap = module.up_softcap = 5.0
    with pytest.warns(UserWarning, match="_apply_gate, that is not known"):
        assert gemmill.torch.convert(module, None) is module


def test_experts_without_weights_or_scales_are_left() -> None:
    model = built("gpt-oss")
    module = of_mxfp4.Mxfp4GptOssExperts(model.config)
    with pytest.warns(UserWarning, match="experts of MXFP4 without weights"):
        assert gemmill.torch.convert(module, None) is module
    module = in_blocks(experts_of(built("Qwen3-MoE")), "float")
    module.down_proj_scale_inv = None
    with pytest.warns(UserWarning, match="experts without down_proj_scale_inv"):
        assert gemmill.torch.convert(module, None) is module


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"gate_up_proj": torch.zeros(2, 256, 128)},
            "gate_up_proj is torch.float32; with gate_up_proj_scale_inv it must",
        ),
        ({"gate_up_proj_scale_inv": torch.ones(2, 1, 1)}, r"gate_up_proj has shape \(2, 256, 128\) .* \(2, 2, 1\)"),
        ({"down_proj_scale_inv": torch.ones(2, 1, 3)}, r"down_proj has shape .* \(2, 1, 1\)"),
        (
            {
                "gate_up_proj": torch.zeros(2, 192, 128).to(torch.float8_e4m3fn),
                "gate_up_proj_scale_inv": torch.ones(2, 2, 1),
            },
            "belong to either the gate or up",
        ),
    ],
)
def test_other_scales_of_blocks_are_refused(changed: dict[str, Any], says: str) -> None:
    shapes = {"gate_up_proj": (2, 256, 128), "down_proj": (2, 128, 128)}
    tensors = {name: torch.zeros(shape).to(torch.float8_e4m3fn) for name, shape in shapes.items()}
    tensors |= {"gate_up_proj_scale_inv": torch.ones(2, 2, 1), "down_proj_scale_inv": torch.ones(2, 1, 1)}
    with pytest.raises(OperandError, match=says):
        Order().read_stored(tensors | changed)
    with pytest.raises(OperandError, match="rows that alternate or are transposed"):
        Order(is_concatenated=False).read_stored(tensors)
