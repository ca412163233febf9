"""Experts of transformers' models, converted and by ``experts_implementation="gemmill"``, on the CPU."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.torch.moe_models import MODELS, built, experts_of, prompt, tokens_for  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402
from gemmill.runtime.torch.layers.mxfp4 import wide_mxfp4  # noqa: E402

LIMITS = {"bf16": 2**-6, "f16": 2**-6, "e4m3_blocks": 0.08, "u4_g64": 0.3, "mxfp4": 0.3}
"""The formats of experts, and the largest error of a layer relative to its norm."""


@pytest.fixture(autouse=True)
def on_the_cpu() -> None:
    gemmill.torch.run_on_cpu()


def distance(found: Any, wanted: Any) -> float:
    return float((found.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())


def converted(model: Any, weights: str = "bf16", **options: Any) -> tuple[Any, str]:
    """A converted copy, and the warning of ``convert``."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        model = gemmill.torch.convert(model, weights, inplace=False, **options)
    return model, " ".join(str(x.message) for x in given)


@pytest.mark.parametrize("weights", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_converted_experts_give_what_eager_ones_give(name: str, weights: str) -> None:
    plain = built(name)
    model, warning = converted(plain, weights)
    layer = experts_of(model)
    assert isinstance(layer, gemmill.torch.Experts)
    assert not warning
    given = tokens_for(plain)
    wanted = experts_of(plain)(*given)
    assert distance(layer(*given), wanted) < LIMITS[weights]
    assert layer(*given).dtype == torch.bfloat16
    unused = given[1].clone()
    unused[:, 0] = 8  # as transformers marks the experts of other ranks
    assert (
        distance(layer(given[0], unused, given[2]), experts_of(plain)(given[0], given[1][:, 1:], given[2][:, 1:]))
        < (LIMITS[weights])
    )
    routers = [x for x in model.modules() if type(x).__name__.endswith("Router")]
    assert routers
    assert all(weight.dtype == torch.bfloat16 for x in routers for weight in x.parameters())


@pytest.mark.parametrize("form", ["converted", "called"])
@pytest.mark.parametrize("name", MODELS)
def test_models_and_their_gradients(name: str, form: str) -> None:
    """In float64 all ways compute the same, up to the epilogue's float32 constants."""
    plain = built(name, dtype=torch.float64)
    if form == "converted":
        model = copy.deepcopy(plain)
        for parent in [*model.modules()]:
            if hasattr(parent, "experts"):
                parent.experts = gemmill.torch.convert(parent.experts, "bf16").double()
        with torch.no_grad():  # the weights that bf16 holds
            for parent in [*plain.modules()]:
                if hasattr(parent, "experts"):
                    for x in parent.experts.parameters():
                        x.copy_(x.bfloat16())
    else:
        model = copy.deepcopy(plain)
        model.set_experts_implementation("gemmill")
    ids = prompt(plain)
    found, wanted = (x(input_ids=ids, use_cache=False).logits for x in (model, plain))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    for logits in (found, wanted):
        (logits * torch.linspace(0, 1, logits.numel()).view_as(logits)).sum().backward()
    others = dict(model.named_parameters())
    shared = [name for name, x in plain.named_parameters() if name in others and x.grad is not None]
    assert any("mlp.gate" in name or "router" in name for name in shared)
    for name_of_weight in shared:
        g = dict(plain.named_parameters())[name_of_weight].grad
        assert distance(others[name_of_weight].grad, g) < 1e-4, name_of_weight
    if form == "converted":
        w1, down = experts_of(model).w1.grad, experts_of(model).w2.grad
        of_plain = experts_of(plain)
        gate_up, wanted_down = of_plain.gate_up_proj.grad, of_plain.down_proj.grad
        if of_plain.is_transposed:
            gate_up, wanted_down = gate_up.mT, wanted_down.mT
        if not of_plain.is_concatenated:
            gate_up = torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), 1)
        assert distance(w1, gate_up) < 1e-4
        assert distance(down, wanted_down) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_autocast_of_weights_in_float32(name: str) -> None:
    plain, model = (built(name, experts=experts, dtype=torch.float32) for experts in ("eager", "gemmill"))
    given = [x.float().requires_grad_(x.is_floating_point()) for x in tokens_for(plain)[::2]]
    ids = tokens_for(plain)[1]
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = (experts_of(x)(given[0], ids, given[1]) for x in (model, plain))
    assert distance(found, wanted) < 2**-6
    found.sum().backward()
    wanted.sum().backward()
    for x, y in zip(experts_of(model).parameters(), experts_of(plain).parameters(), strict=True):
        assert x.grad.dtype == torch.float32
        assert distance(x.grad, y.grad) < 2**-5


@pytest.mark.parametrize("weights", ["called", "bf16", "e4m3_blocks", "mxfp4"])
def test_models_compile_to_one_graph(weights: str) -> None:
    model = built("Qwen3-MoE", experts="gemmill" if weights == "called" else "eager")
    if weights != "called":
        model, _ = converted(model, weights)
    ids = prompt(model)
    torch.compiler.reset()

    def logits(ids: Any) -> Any:
        return model(input_ids=ids, use_cache=False).logits

    with torch.no_grad():
        compiled = torch.compile(logits, fullgraph=True, backend="aot_eager")(ids)
        assert distance(compiled, logits(ids)) < 2**-7


@pytest.mark.parametrize("weights", LIMITS)
def test_converted_models_save_load_and_move(weights: str) -> None:
    first, _ = converted(built("gpt-oss"), weights)
    second = copy.deepcopy(first)
    with torch.no_grad():
        for x in second.parameters():
            x.zero_()
    second.load_state_dict(first.state_dict())
    given = tokens_for(built("gpt-oss"))
    wanted = experts_of(first)(*given)
    assert torch.equal(experts_of(second)(*given), wanted)
    file = io.BytesIO()
    torch.save(first, file)
    file.seek(0)
    assert torch.equal(experts_of(torch.load(file, weights_only=False))(*given), wanted)
    moved = experts_of(first.half())
    dtypes = {"e4m3_blocks": torch.float8_e4m3fn, "u4_g64": torch.uint8, "mxfp4": torch.uint8}
    assert moved.w1.dtype == dtypes.get(weights, torch.float16)
    assert moved.b2.dtype == torch.float16
    assert distance(moved(*given), wanted) < 2**-5


class Doubled(Qwen3MoeExperts):  # type: ignore[misc]
    def forward(self, *arguments: Any) -> Any:
        return 2 * super().forward(*arguments)


def in_e4m3(experts: Any) -> None:
    experts.down_proj = torch.nn.Parameter(experts.down_proj.detach().to(torch.float8_e4m3fn), requires_grad=False)


LEFT: dict[str, Callable[[Any], Any]] = {
    "experts with an activation, Qwen3MoeExperts._apply_gate, that is not known": lambda x: setattr(
        x, "_apply_gate", lambda sums: sums.chunk(2, -1)[0].sin()
    ),
    "experts with parameter gain": lambda x: x.register_parameter("gain", torch.nn.Parameter(torch.ones(1))),
    "experts with tensor of a child side": lambda x: x.add_module("side", torch.nn.Linear(2, 2)),
    "experts without is_transposed": lambda x: delattr(x, "is_transposed"),
    "experts without a gate": lambda x: setattr(x, "has_gate", False),
    "experts with a norm": lambda x: setattr(x, "has_post_expert_norm", True),
    "experts of torch.float8_e4m3fn": in_e4m3,
    "forward hooks": lambda x: x.register_forward_hook(lambda *_: None),
    "its own forward": lambda x: setattr(x, "__class__", Doubled),
}
"""By the reason that the warning gives: what changes experts."""


@pytest.mark.parametrize("reason", LEFT)
def test_experts_that_convert_leaves_are_named(reason: str) -> None:
    model = built("Qwen3-MoE")
    LEFT[reason](experts_of(model))
    result, warning = converted(model, "bf16")
    assert f"'model.layers.1.mlp.experts' ({reason})" in warning
    assert type(experts_of(result)) is type(experts_of(model))
    assert isinstance(result.model.layers[0].mlp.experts, gemmill.torch.Experts)


@pytest.mark.parametrize("weights", LIMITS)
@pytest.mark.parametrize("name", ["Qwen3-MoE", "gpt-oss"])
def test_the_checkpoint_of_a_model_loads_into_what_it_became(name: str, weights: str) -> None:
    first, second = built(name), built(name)
    with torch.no_grad():
        for x in first.parameters():
            x.zero_()
    model, _ = converted(first, weights)
    for assign in (False, True):
        model.load_state_dict(second.state_dict(), assign=assign)
        given = tokens_for(second)
        assert torch.equal(experts_of(model)(*given), experts_of(converted(second, weights)[0])(*given))
    tensors = second.state_dict()
    del tensors["model.layers.1.mlp.experts.down_proj"]
    with pytest.raises(RuntimeError, match=r"model\.layers\.1\.mlp\.experts\.gate_up_proj: down_proj is missing"):
        model.load_state_dict(tensors)


def test_formats_that_experts_do_not_have_are_named() -> None:
    _, warning = converted(built("Qwen3-MoE"), "e4m3_rows")
    assert "'model.layers.0.mlp.experts', 'model.layers.1.mlp.experts' (experts, which have no format" in warning


def test_experts_of_other_models_do_not_run() -> None:
    model = built("Qwen3-MoE", experts="gemmill")
    experts_of(model).act_fn = torch.nn.Softplus()
    with pytest.raises(OperandError, match=r"the activation of experts, Qwen3MoeExperts._apply_gate, is not known"):
        model(input_ids=prompt(model))
    experts_of(model).has_gate = False
    with pytest.raises(OperandError, match="experts without a gate"):
        model(input_ids=prompt(model))


@pytest.mark.parametrize("first", ["gemmill.torch", "transformers.integrations.finegrained_fp8"])
def test_the_implementation_is_there_in_any_order_of_imports(first: str) -> None:
    text = f"import {first}, gemmill.torch; from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS as plain\n"
    text += "from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS as e4m3\nimport sys\n"
    text += "print(*('gemmill' in x for x in (plain, e4m3)), any(type(x).__name__ == '_Finder' for x in sys.meta_path))"
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "True", "False"]


def test_weights_that_mxfp4_holds_keep_their_values() -> None:
    """As a model has them that was dequantised from MXFP4."""
    first, _ = converted(built("gpt-oss"), "mxfp4")
    plain = built("gpt-oss")
    layer, given = experts_of(first), tokens_for(plain)
    w1, w2 = (wide_mxfp4(w, s) for w, s in ((layer.w1, layer.w1_scale), (layer.w2, layer.w2_scale)))
    halves = w1.unflatten(1, (-1, 2, 8)).transpose(1, 2).flatten(2, 3)  # (experts, gate and up, F, H)
    with torch.no_grad():
        experts_of(plain).gate_up_proj.copy_(halves.transpose(1, 2).flatten(1, 2).mT)
        experts_of(plain).down_proj.copy_(w2.mT)
    again, _ = converted(plain, "mxfp4")
    assert all(torch.equal(*pair) for pair in zip(layer.parameters(), experts_of(again).parameters(), strict=True))
    assert distance(experts_of(again)(*given), experts_of(plain)(*given)) < 2**-6


def test_new_experts() -> None:
    torch.manual_seed(0)
    text = "(clamp(up, -7, 7) + 1) * min(gate, 7) * sigmoid(1.702 * min(gate, 7))"
    layer = gemmill.torch.Experts(4, 32, 16, bias=True, activation=text)
    assert (layer.w1.shape, layer.w2.shape, layer.up_bias.shape, layer.b2.shape) == (
        (4, 32, 32), (4, 32, 16), (4, 16), (4, 32)
    )  # fmt: skip
    x, ids = torch.randn(2, 3, 32), torch.randint(0, 4, (2, 3, 2))
    d = layer(x, ids)
    assert (d.shape, d.dtype) == (x.shape, torch.float32)
    d.sum().backward()
    assert all(x.grad is not None for x in layer.parameters())
    assert "activation=(clamp" in repr(layer)
    assert gemmill.torch.Experts(4, 256, 128, weights="e4m3_blocks", device="meta").w1_scale.shape == (4, 2, 2)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"weights": "e4m3_rows"}, "for experts it must be bf16, f16, e4m3_blocks, u4_g128"),
        ({"weights": "e4m3_blocks"}, "F is 16; for e4m3_blocks it must be a multiple of 128"),
        ({"weights": "mxfp4"}, "F is 16; for mxfp4 it must be a multiple of 32"),
        ({"activation": "silo"}, "activation is 'silo'; it must be gelu"),
        ({"activation": "gate * upp"}, "upp"),
    ],
)
def test_options_that_experts_do_not_have_are_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises((OperandError, ValueError), match=says):
        gemmill.torch.Experts(4, 32, 16, **changed)
