"""Models converted to quantised layers: what hangs on their layers, what reads their weights, what they load later."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn.utils import prune  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402

BF16 = torch.bfloat16
QUANTISED = {"e4m3_rows": 0.06, "e4m3_blocks": 0.06, "u4_g128": 0.15}
"""The formats, and the largest error of D that each may add, relative to its norm."""


def linear(k: int = 256, n: int = 136, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(k, n, dtype=BF16)


def rows(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(BF16)


def distance(found: Any, wanted: Any) -> float:
    return float((found.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())


def converted(model: Any, weights: str = "e4m3_rows", **options: Any) -> tuple[Any, str]:
    """The converted model, and the warning of ``convert``."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        model = gemmill.torch.convert(model, weights, **options)
    return model, " ".join(str(x.message) for x in given)


def hooked(register: str) -> Callable[[Any], None]:
    return lambda layer: getattr(layer, register)(lambda *_: None)


def replaced_forward(layer: Any) -> None:
    layer.forward = lambda x: 2 * torch.nn.functional.linear(x, layer.weight, layer.bias)


class Doubled(torch.nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


UNCHANGED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "old weight_norm": (torch.nn.utils.weight_norm, "forward pre hooks"),
    "weight_norm": (torch.nn.utils.parametrizations.weight_norm, "a subclass of torch.nn.Linear, ParametrizedLinear"),
    "old spectral_norm": (torch.nn.utils.spectral_norm, "forward pre hooks"),
    "spectral_norm": (torch.nn.utils.parametrizations.spectral_norm, "ParametrizedLinear"),
    "prune": (lambda x: prune.random_unstructured(x, "weight", 0.5), "forward pre hooks"),
    "forward hook": (hooked("register_forward_hook"), "(forward hooks)"),
    "forward pre hook": (hooked("register_forward_pre_hook"), "(forward pre hooks)"),
    "backward hook": (hooked("register_full_backward_hook"), "(backward hooks)"),
    "backward pre hook": (hooked("register_full_backward_pre_hook"), "(backward pre hooks)"),
    "state dict hook": (hooked("register_state_dict_post_hook"), "(state dict hooks)"),
    "load pre hook": (hooked("register_load_state_dict_pre_hook"), "(load state dict pre hooks)"),
    "load post hook": (hooked("register_load_state_dict_post_hook"), "(load state dict post hooks)"),
    "hook of a gradient": (lambda x: x.weight.register_hook(torch.neg), "(hooks of weight)"),
    "hook of a summed gradient": (lambda x: x.bias.register_post_accumulate_grad_hook(id), "(hooks of bias)"),
    "buffer": (lambda x: x.register_buffer("mask", torch.ones(3)), "(buffer mask)"),
    "parameter": (lambda x: x.register_parameter("gain", torch.nn.Parameter(torch.ones(3))), "(parameter gain)"),
    "child": (lambda x: x.add_module("side", torch.nn.ReLU()), "(child side)"),
    "forward": (replaced_forward, "(its own forward)"),
    "subclass": (lambda x: setattr(x, "__class__", Doubled), "Doubled"),
}
"""By kind: what changes a layer, and the reason that the warning gives."""


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("kind", UNCHANGED)
def test_layers_with_more_than_weight_and_bias_stay_and_are_named(kind: str) -> None:
    change, reason = UNCHANGED[kind]

    def make(seed: int) -> Any:
        model = torch.nn.Sequential(linear(seed=seed), linear(136, 64)).eval()
        change(model[0])
        return model

    model, trained, x = make(0), make(1), rows(3, 256)
    model.load_state_dict(trained.state_dict())
    wanted = trained[0](x)
    layer = model[0]
    model, warning = converted(model)
    assert model[0] is layer
    assert isinstance(model[1], gemmill.torch.Linear)
    assert "unchanged, because their new form may not compute the same: '0' (" in warning
    assert reason in warning
    assert "'1'" not in warning
    assert torch.equal(model[0](x), wanted)
    assert converted(model, skip=("0",))[1] == ""


def test_attributes_move_to_the_new_layer() -> None:
    layer = linear()
    layer._is_hf_initialized, layer.layer_index = True, 7
    layer, warning = converted(layer)
    assert isinstance(layer, gemmill.torch.Linear)
    assert (layer._is_hf_initialized, layer.layer_index, warning) == (True, 7, "")


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_frozen_layers_stay_frozen(dtype: Any) -> None:
    frozen, trained = linear().to(dtype).requires_grad_(False), linear().to(dtype)
    for weights in ("bf16", "f16"):
        assert not any(x.requires_grad for x in gemmill.torch.Linear.from_linear(frozen, weights).parameters())
        assert all(x.requires_grad for x in gemmill.torch.Linear.from_linear(trained, weights).parameters())


def test_hooks_of_a_quantised_layer_are_named_too() -> None:
    model = torch.nn.Sequential(torch.nn.Module())
    model[0].register_buffer("weight", torch.ones(16, 32).to(torch.float8_e4m3fn))
    model[0].register_buffer("weight_scale", torch.ones(1))
    model[0].register_forward_hook(lambda *_: None)
    layer = model[0]
    assert "'0' (forward hooks)" in converted(model, "bf16")[1]
    assert model[0] is layer


class Adapted(torch.nn.Module):  # type: ignore[misc]
    """A linear layer with an adapter of low rank, which merges as peft's does."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = linear()
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(256, 8, bias=False, dtype=BF16)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(8, 136, bias=False, dtype=BF16)})
        self.is_merged = False

    def delta(self) -> Any:
        return self.lora_B["default"].weight @ self.lora_A["default"].weight

    def merge(self) -> None:
        self.base_layer.weight.data += self.delta()
        self.is_merged = True

    def unmerge(self) -> None:
        self.base_layer.weight.data -= self.delta()
        self.is_merged = False

    def merge_safely(self) -> None:
        weights = self.base_layer.weight.data.clone()
        weights += self.delta()
        assert torch.isfinite(weights).all()
        self.base_layer.weight.data = weights
        self.is_merged = True

    def forward(self, x: Any) -> Any:
        d = self.base_layer(x)
        return d if self.is_merged else d + self.lora_B["default"](self.lora_A["default"](x))


@pytest.mark.parametrize("weights", ["bf16", *QUANTISED])
def test_adapters_stay_and_merge_into_the_converted_base(weights: str) -> None:
    plain, x = Adapted(), rows(5, 256)
    model, warning = converted(copy.deepcopy(plain), weights)
    assert "'lora_A.default', 'lora_B.default' (an adapter of a base_layer)" in warning
    assert isinstance(model.base_layer, gemmill.torch.Linear)
    limit = 3 * QUANTISED.get(weights, 2**-7)  # merging quantises again
    with torch.no_grad():
        wanted = plain(x)
        assert distance(model(x), wanted) < limit
        for step in (model.merge, model.unmerge, model.merge_safely):
            step()
            assert distance(model(x), wanted) < limit
        assert distance(model.base_layer(x), plain.base_layer(x)) > limit


@pytest.mark.parametrize("weights", QUANTISED)
def test_a_weight_reads_and_writes_like_that_of_a_linear(weights: str) -> None:
    plain, x = linear(), rows(3, 256)
    layer = gemmill.torch.Linear.from_linear(plain, weights)
    weight, limit = layer.weight, QUANTISED[weights]
    assert (weight.shape, weight.dtype, weight.device) == (plain.weight.shape, BF16, plain.weight.device)
    assert isinstance(weight, torch.nn.Parameter)
    assert layer.get_parameter("weight").numel() == plain.weight.numel()
    y = x.clone().requires_grad_()
    d = torch.nn.functional.linear(y, weight, layer.bias)
    d.sum().backward()
    assert distance(d, plain(x)) < limit
    assert distance(gemmill.matmul(x, weight.mT) + plain.bias, plain(x)) < limit
    assert distance(y.grad, plain.weight.detach().sum(0).expand(3, -1)) < limit
    copies = copy.deepcopy(weight), pickle.loads(pickle.dumps(weight)), torch.tensor(weight.tolist(), dtype=BF16)
    assert all(torch.equal(x, layer.dequantised()) for x in copies)
    assert repr(weight) == repr(layer.dequantised())
    assert f"{weight[0, 0]:.3f}" == f"{layer.dequantised()[0, 0]:.3f}"
    with torch.no_grad():
        layer.weight[3] = 7.0
        layer.weight.data[5:9].fill_(2.0)
        layer.weight.mT[:, 11].zero_()
        layer.weight.chunk(2)[1].fill_(3.0)
        wanted = plain.weight.clone()
        wanted[3], wanted[5:9], wanted[11], wanted[68:] = 7.0, 2.0, 0.0, 3.0
        assert distance(layer.dequantised(), wanted) < limit
        assert torch.equal(layer.dequantised()[[3, 5, 11, 68]], wanted[[3, 5, 11, 68]])
        torch.add(plain.weight, plain.weight, out=layer.weight)
        assert distance(layer(x), 2 * plain(x) - plain.bias) < limit
    for use_memory in (weight.data_ptr, weight.share_memory_):
        with pytest.raises(RuntimeError, match="has no memory: pass"):
            use_memory()
    for train in (
        weight.requires_grad_,
        lambda: setattr(weight, "requires_grad", True),
        lambda: torch.nn.Parameter(weight),
    ):
        with pytest.raises(OperandError, match="only bf16 and f16 weights can be trained"):
            train()
    weight.requires_grad_(False).requires_grad = False
    with pytest.raises(OperandError, match=r"shape \(136, 100\); this layer needs \(136, 256\)"):
        weight.data = weight[:, :100].clone()


@pytest.mark.parametrize("weights", QUANTISED)
def test_tied_weights(weights: str) -> None:
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(136, 256, dtype=BF16), "head": linear()})
    model["head"].weight = model["embed"].weight
    table, x = model["embed"].weight, rows(3, 256)
    gemmill.torch.convert(model, weights)
    assert model["embed"].weight is table
    assert distance(model["head"](x) - model["head"].bias, x @ table.mT) < QUANTISED[weights]
    table.data.normal_()
    model["head"].weight = table
    assert distance(model["head"](x) - model["head"].bias, x @ table.mT) < QUANTISED[weights]
    assert model["head"].stored_weight.dtype != BF16


class Reader(torch.nn.Module):  # type: ignore[misc]
    """Reads a weight's dtype as T5 does, and the weight itself."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.wo = layer

    def forward(self, x: Any) -> Any:
        x = x.to(self.wo.weight.dtype)
        return self.wo(x) + torch.nn.functional.linear(x, self.wo.weight, self.wo.bias)


@pytest.mark.parametrize("weights", ["bf16", *QUANTISED])
def test_programs_that_read_a_weight_compile_and_export(weights: str) -> None:
    torch.compiler.reset()
    model, x = Reader(gemmill.torch.Linear.from_linear(linear(), weights)), rows(3, 256).float()
    with torch.no_grad():
        wanted = model(x)
        assert distance(torch.compile(model, fullgraph=True, backend="aot_eager")(x), wanted) < 2**-7
        assert distance(torch.export.export(model, (x,)).module()(x), wanted) < 2**-7


MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "enable_grad": torch.enable_grad}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weights", ["bf16", *QUANTISED])
def test_encoders_in_eval_mode(weights: str, mode: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dtype=BF16)
    plain = torch.nn.TransformerEncoder(layer, 2).eval()
    model, warning = converted(copy.deepcopy(plain), weights)
    assert "'layers.0.self_attn.out_proj', 'layers.1.self_attn.out_proj' (a subclass" in warning
    by_hand = copy.deepcopy(plain)
    by_hand.layers[0].linear1 = gemmill.torch.Linear.from_linear(by_hand.layers[0].linear1, weights)
    x, padding = rows(2, 7, 256), torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 5:] = True
    calls: list[int] = []
    model.layers[1].linear2.register_forward_hook(lambda *_: calls.append(1))
    with MODES[mode]():
        wanted, wanted_padded = plain(x), plain(x, src_key_padding_mask=padding)[:, :5]
        for encoder in (model, by_hand):
            assert distance(encoder(x), wanted) < 0.06
            assert distance(encoder(x, src_key_padding_mask=padding)[:, :5], wanted_padded) < 0.06
        if mode == "no_grad":
            torch.compiler.reset()
            assert distance(torch.compile(by_hand, fullgraph=True, backend="aot_eager")(x), wanted) < 0.06
    assert len(calls) == 2


@pytest.mark.parametrize("weights", QUANTISED)
def test_attention_that_reads_a_converted_projection(weights: str) -> None:
    plain = torch.nn.MultiheadAttention(256, 4, batch_first=True, dtype=BF16).eval()
    model, x = copy.deepcopy(plain), rows(2, 7, 256)
    model.out_proj = gemmill.torch.Linear.from_linear(plain.out_proj, weights)
    with torch.no_grad():
        assert distance(model(x, x, x)[0], plain(x, x, x)[0]) < QUANTISED[weights]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("weights", ["bf16", *QUANTISED])
def test_the_checkpoint_that_was_loaded_last_counts(weights: str, strict: bool) -> None:
    first, second, x = linear(seed=0), linear(seed=1), rows(3, 256)
    model = gemmill.torch.convert(torch.nn.Sequential(first), weights)
    for assign in (False, True):
        model.load_state_dict(torch.nn.Sequential(second).state_dict(), strict=strict, assign=assign)
        assert distance(model(x), second(x)) < QUANTISED.get(weights, 2**-7)
        second = linear(seed=2)
    own = gemmill.torch.Linear.from_linear(second, weights)
    without_memory = gemmill.torch.convert(torch.nn.Sequential(linear()).to("meta"), weights)
    for assign in (False, True):
        loaded = without_memory if assign else copy.deepcopy(without_memory).to_empty(device="cpu")
        loaded.load_state_dict(torch.nn.Sequential(second).state_dict(), strict=strict, assign=assign)
        assert torch.equal(loaded(x), own(x))
    model[0].load_state_dict(own.state_dict(), strict=strict)
    assert torch.equal(model(x), own(x))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), own(x))


@pytest.mark.parametrize(
    ("weights", "tensors", "says"),
    [
        ("bf16", {"weight": torch.ones(136, 256).to(torch.float8_e4m3fn)}, "holds torch.float8_e4m3fn, but the layer"),
        ("u4_g128", {"weight": torch.ones(136, 256).to(torch.float8_e4m3fn)}, "but the layer holds u4_g128"),
        ("e4m3_rows", {"weight": torch.ones(136, 128, dtype=torch.uint8)}, "holds torch.uint8, but the layer holds"),
        (
            "e4m3_rows",
            {"weight": torch.ones(136, 256), "weight_scale": torch.ones(136, 1)},
            "torch.float32 with weight_scale, but",
        ),
        ("u4_g128", {"weight": torch.ones(136, 128)}, r"shape \(136, 128\); this layer needs \(136, 256\)"),
    ],
)
def test_checkpoints_that_do_not_fit_change_nothing(weights: str, tensors: dict[str, Any], says: str) -> None:
    layer = gemmill.torch.Linear.from_linear(linear(), weights)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match=says):
        layer.load_state_dict(tensors, strict=False)
    assert all(torch.equal(x.float(), before[name].float()) for name, x in layer.state_dict().items())


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("weights", ["bf16", *QUANTISED])
def test_fsdp_shards_converted_layers(weights: str, tmp_path: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, x = gemmill.torch.convert(torch.nn.Sequential(linear(), linear(136, 64)), weights), rows(3, 256)
    wanted = model(x)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert torch.equal(model(x), wanted)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_layers_that_are_changed_after_conversion() -> None:
    wide = torch.nn.utils.weight_norm(gemmill.torch.Linear.from_linear(linear(), "bf16"))
    with torch.no_grad():
        wide.weight_g.mul_(2)
        x = rows(3, 256)
        assert distance(wide(x) - wide.bias, 2 * (linear()(x) - wide.bias)) < 2**-6
    other = gemmill.torch.Linear.from_linear(linear(), "e4m3_rows")
    with pytest.raises(OperandError, match=r"is torch.bfloat16, and e4m3_rows needs torch.float8_e4m3fn: assign to"):
        torch.func.functional_call(other, {"weight": linear().weight}, (x,))
    assert torch.equal(torch.func.functional_call(other, dict(other.named_parameters()), (x,)), other(x))
    pruned = gemmill.torch.Linear.from_linear(linear(), "e4m3_rows")
    with pytest.raises((TypeError, OperandError)):
        prune.random_unstructured(pruned, "weight", 0.5)(x)
