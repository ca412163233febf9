"""The plugin for vLLM against signatures recorded from vLLM's sources, and what its layers compute, on the CPU."""

from __future__ import annotations

import enum
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

torch: Any = pytest.importorskip("torch")

from tests.torch.option_texts import OptionTexts  # noqa: E402

PLUGIN = Path(__file__).parents[2] / "integrations" / "vllm"
RECORDED = yaml.safe_load(Path(__file__).with_name("vllm.yaml").read_text())["modules"]


class Platform:
    CUDA = "cuda"


def _function(name: str, signature: str, body: str = "return None") -> Any:
    """A function with a recorded signature, so that a call it would not take raises."""
    made: dict[str, Any] = {}
    exec(f"def {name}{signature}:\n    {body}", made)
    return made[name]


def _class(name: str, recorded: dict[str, Any]) -> Any:
    if "fields" in recorded:
        return type(name, (SimpleNamespace,), {})
    members = {}
    for method, signature in recorded["methods"].items():
        made = _function(method, signature, "raise NotImplementedError")
        members[method] = classmethod(made) if signature.startswith("(cls") else made
    return type(name, (), members)


def _register(tables: dict[str, dict[Any, list[Any]]], signature: str) -> Any:
    checked = _function("register_linear_kernel", signature)

    def register_linear_kernel(*arguments: Any, **keywords: Any) -> None:
        bound = inspect.signature(checked).bind(*arguments, **keywords)
        bound.apply_defaults()
        kernel, platform, kind = bound.args
        tables[{"fp8": "_POSSIBLE_FP8_KERNELS", "mp": "_POSSIBLE_KERNELS"}[kind]].setdefault(platform, []).append(
            kernel
        )

    return register_linear_kernel


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's modules as recorded, with what of them the plugin has run; and the plugin."""
    import gemmill.torch

    gemmill.torch.run_on_cpu()
    for path in RECORDED:
        for parent in ("", *("." + part for part in path.split(".")[1:])):
            name = path if not parent else path[: path.index(parent) + len(parent)]
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    tables: dict[str, dict[Any, list[Any]]] = {"_POSSIBLE_KERNELS": {"cuda": ["Machete"]}, "_POSSIBLE_FP8_KERNELS": {}}
    for path, recorded in RECORDED.items():
        module = sys.modules[path]
        parent, _, last = path.rpartition(".")
        setattr(sys.modules[parent], last, module)
        for name, signature in recorded.get("functions", {}).items():
            setattr(module, name, _function(name, signature))
        for name, of_class in recorded.get("classes", {}).items():
            setattr(module, name, _class(name, of_class))
    linear: Any = sys.modules["vllm.model_executor.kernels.linear"]
    vars(linear).update(tables)
    signature = RECORDED[linear.__name__]["functions"]["register_linear_kernel"]
    linear.register_linear_kernel = _register(tables, signature)
    vars(sys.modules["vllm.envs"]).update(VLLM_BATCH_INVARIANT=False, environment_variables={})
    vars(sys.modules["vllm.platforms"])["PlatformEnum"] = Platform
    monkeypatch.syspath_prepend(str(PLUGIN))
    yield SimpleNamespace(linear=linear, layers=sys.modules["vllm.model_executor.layers.linear"])
    for name in [x for x in sys.modules if x.startswith("gemmill_vllm")]:
        del sys.modules[name]


def test_kernels_come_first_and_once(vllm: Any) -> None:
    import gemmill_vllm

    gemmill_vllm.register()
    gemmill_vllm.register()
    names = {
        table: [getattr(kernel, "__name__", kernel) for kernel in getattr(vllm.linear, table)["cuda"]]
        for table in ("_POSSIBLE_FP8_KERNELS", "_POSSIBLE_KERNELS")
    }
    assert names == {
        "_POSSIBLE_FP8_KERNELS": ["GemmillFP8LinearKernel"],
        "_POSSIBLE_KERNELS": ["GemmillU4LinearKernel", "Machete"],
    }


def test_code_compiled_without_the_plugin_is_not_reused(vllm: Any) -> None:
    import gemmill_vllm

    import gemmill

    gemmill_vllm.register()
    (factor,) = sys.modules["vllm.envs"].environment_variables.values()
    assert factor() == gemmill.__version__


def test_methods_take_what_vllm_passes(vllm: Any) -> None:
    """Each method that a recorded one of the base has takes all its arguments, by position and by name."""
    import gemmill_vllm.fp8
    import gemmill_vllm.u4

    gemmill_vllm.register()
    for kernel in (gemmill_vllm.fp8.GemmillFP8LinearKernel, gemmill_vllm.u4.GemmillU4LinearKernel):
        (base,) = kernel.__bases__
        own = {*vars(kernel)} & {*vars(base)} - {"__module__", "__doc__"}
        assert own >= {"can_implement"}
        for name in own:
            recorded, made = (inspect.signature(getattr(x, name)) for x in (base, kernel))
            by_name = {x.name: None for x in recorded.parameters.values() if x.kind is x.KEYWORD_ONLY}
            by_position = [None for x in recorded.parameters.values() if x.kind is not x.KEYWORD_ONLY]
            made.bind(*by_position, **by_name)
            made.bind(**dict.fromkeys(recorded.parameters))
    apply = inspect.signature(vllm.layers.UnquantizedLinearMethod.apply)
    assert [*apply.parameters] == ["self", "layer", "x", "bias"]
    assert apply.parameters["bias"].default is None


def _group(*shape: int) -> Any:
    return SimpleNamespace(scale=SimpleNamespace(group_shape=shape))


@pytest.mark.parametrize(
    ("weights", "activations", "dtype", "says"),
    [
        ((-1, 1), (1, -1), "bfloat16", None),
        ((-1, -1), (-1, -1), "float16", None),
        ((128, 128), (1, 128), "bfloat16", "scales of weights have groups"),
        ((-1, 1), (1, -1), "float32", "the output is"),
    ],
)
def test_fp8_layers_that_are_taken(vllm: Any, weights: Any, activations: Any, dtype: str, says: str | None) -> None:
    from gemmill_vllm.fp8 import GemmillFP8LinearKernel as Kernel

    keys = {"weight_quant_key": _group(*weights), "activation_quant_key": _group(*activations)}
    config = vllm.linear.FP8ScaledMMLinearLayerConfig(**keys, out_dtype=getattr(torch, dtype))
    taken, reason = Kernel.can_implement(config)
    assert taken is (says is None)
    assert says is None or says in (reason or "")
    assert Kernel.is_supported(90) == (True, None)
    assert not Kernel.is_supported(100)[0]


@pytest.mark.parametrize("of_rows", [True, False])
def test_fp8_layers(vllm: Any, of_rows: bool) -> None:
    from gemmill_vllm.fp8 import GemmillFP8LinearKernel as Kernel

    x, weight = (torch.randint(-3, 4, shape).to(torch.float8_e4m3fn) for shape in ((6, 32), (16, 32)))
    of_x, of_weight = (torch.rand(shape) for shape in ((6, 1), (16, 1))) if of_rows else torch.rand(2)
    bias = torch.randn(16, dtype=torch.bfloat16)
    kernel = Kernel.__new__(Kernel)
    found = kernel.apply_scaled_mm(
        A=x, B=weight.t(), out_dtype=torch.bfloat16, As=of_x, Bs=of_weight, bias=bias, output_shape=[2, 3, 16]
    )
    wanted = (x.double() * of_x) @ (weight.double() * of_weight).t() + bias
    torch.testing.assert_close(found.double(), wanted.view(2, 3, 16), rtol=2**-7, atol=2**-6)


def _u4(vllm: Any, zero_points: bool) -> Any:
    from gemmill_vllm.u4 import GemmillU4LinearKernel as Kernel

    config = vllm.linear.MPLinearLayerConfig(
        partition_weight_shape=(64, 16),
        weight_type="uint4" if zero_points else "uint4b8",
        act_type=torch.bfloat16,
        group_size=32,
        zero_points=zero_points,
        has_g_idx=False,
    )
    assert Kernel.can_implement(config) == (True, None)
    for wrong in ({"group_size": -1}, {"has_g_idx": True}, {"weight_type": "uint8b128"}, {"act_type": torch.float32}):
        taken, reason = Kernel.can_implement(SimpleNamespace(**{**vars(config), **wrong}))
        assert not taken
        assert reason
    kernel = Kernel.__new__(Kernel)
    kernel.config, kernel.w_q_name, kernel.w_s_name, kernel.w_zp_name = config, "q", "s", "z"
    kernel._transform_param = lambda layer, name, change: change(getattr(layer, name))
    kernel._get_weight_params = lambda layer: (layer.q, layer.s, getattr(layer, "z", None), None)
    return kernel


@pytest.mark.parametrize("zero_points", [True, False])
def test_layers_of_4_bits(vllm: Any, zero_points: bool) -> None:
    """From what checkpoints hold: eight values of one column in an int32, along K, and zero points along N."""
    kernel = _u4(vllm, zero_points)
    values = torch.randint(0, 16, (64, 16), dtype=torch.int32)
    zeros = torch.randint(0, 16, (2, 16), dtype=torch.int32) if zero_points else torch.full((2, 16), 8)
    scales = torch.randint(-3, 1, (2, 16)).bfloat16().exp2()  # so that no weight is rounded
    places = torch.arange(0, 32, 4, dtype=torch.int32)
    packed = (values.view(8, 8, 16) << places[None, :, None]).sum(1, dtype=torch.int32)
    layer = torch.nn.Module()
    layer.q, layer.s = packed, scales
    layer.z = (zeros.view(2, 2, 8).int() << places).sum(2, dtype=torch.int32)
    kernel.process_weights_after_loading(layer)
    x, bias = torch.randn(2, 3, 64).bfloat16(), torch.randn(16).bfloat16()
    spread = [y.double().repeat_interleave(32, 0) for y in (zeros, scales)]
    wanted = x.double() @ ((values - spread[0]) * spread[1]) + bias
    torch.testing.assert_close(kernel.apply_weights(layer, x, bias).double(), wanted, rtol=2**-7, atol=2**-6)


def test_layers_that_are_not_quantised(vllm: Any) -> None:
    import gemmill_vllm
    from gemmill_vllm.unquantized import linear, serves

    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((2, 3, 32), (16, 32), (16,)))
    for b in (None, bias):
        wanted = torch.nn.functional.linear(x.double(), weight.double(), None if b is None else b.double())
        torch.testing.assert_close(linear(x, weight, b).double(), wanted, rtol=2**-7, atol=2**-5)
    assert serves(x, weight)
    assert not serves(x.float(), weight)
    gemmill_vllm.register()
    layer = torch.nn.Module()
    layer.weight = weight
    with pytest.raises(NotImplementedError):  # of what is recorded: on the CPU all goes to what was there
        vllm.layers.UnquantizedLinearMethod().apply(layer, x)


class Activation(enum.Enum):
    """As vLLM's MoEActivation."""

    SILU = "silu"
    GELU = "gelu"
    SWIGLUOAI = "swigluoai"


def _experts(biases: bool) -> tuple[Any, tuple[Any, Any, Any, Any, Any], dict[str, Any]]:
    """A layer of experts as its methods see it, the tensors of a call, and its other arguments."""
    torch.manual_seed(0)
    layer = SimpleNamespace(_lora_context=None, activation_config=SimpleNamespace(clamp_limit=None))
    layer.w1_bias, layer.w2_bias = (torch.randn(4, n).bfloat16() if biases else None for n in (64, 48))
    x, w1, w2 = (torch.randn(*shape).bfloat16() / 6 for shape in ((7, 48), (4, 64, 48), (4, 48, 32)))
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(7)]).int()
    others = dict.fromkeys(("expert_map", "a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta"))
    others |= {"activation": Activation.SILU, "global_num_experts": 4, "apply_router_weight_on_input": False}
    return layer, (x, w1, w2, torch.rand(7, 2), ids), others


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("is_on", [False, True])
def test_experts(vllm: Any, biases: bool, activation: str, is_on: bool) -> None:
    from gemmill_vllm.experts import run

    vars(sys.modules["vllm.envs"])["VLLM_BATCH_INVARIANT"] = is_on
    layer, (x, w1, w2, weights, ids), _ = _experts(biases)
    output = torch.full_like(x, float("nan"))
    with OptionTexts() as kept:
        run(output, x, (w1, w2), ids, weights, activation, (layer.w1_bias, layer.w2_bias) if biases else None)
    assert kept.texts == ["bits='invariant'" if is_on else ""]
    wanted = torch.zeros(7, 48, dtype=torch.float64)
    for token, slot in itertools.product(range(7), range(2)):
        expert = ids[token, slot]
        sums = w1[expert].double() @ x[token].double() + (layer.w1_bias[expert] if biases else 0)
        gate, up = sums.chunk(2)
        y = w2[expert].double() @ (getattr(torch.nn.functional, activation)(gate) * up)
        wanted[token] += weights[token, slot] * (y + (layer.w2_bias[expert] if biases else 0))
    torch.testing.assert_close(output.double(), wanted, rtol=2**-6, atol=2**-5)


def test_experts_of_e4m3(vllm: Any) -> None:
    from gemmill_vllm.experts import run, scales_of, serves

    torch.manual_seed(0)
    x, w1, w2 = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((7, 256), (4, 256, 256), (4, 256, 128)))
    of_x, *of_weights = (torch.rand(shape) / 8 for shape in ((7, 2), (4, 2, 2), (4, 2, 1)))
    layer = SimpleNamespace(_lora_context=None, gemm1_clamp_limit=None, block_shape=[128, 128])
    layer.w1_scale, layer.w2_scale = of_weights
    ids, weights = torch.stack([torch.randperm(4)[:2] for _ in range(7)]).int(), torch.rand(7, 2)
    scales = scales_of(layer, x, of_x)
    assert serves(layer, x, w1, ids, Activation.SILU, None, scales)
    output = torch.empty(7, 256, dtype=torch.bfloat16)
    run(output, x, (w1, w2), ids, weights, "silu", None, scales)
    wide = [y.double() * s.double().repeat_interleave(128, -1) for y, s in ((x, of_x),)]
    for y, s in zip((w1, w2), of_weights, strict=True):
        wide.append(y.double() * s.double().repeat_interleave(128, 1).repeat_interleave(128, 2))
    wanted = torch.zeros(7, 256, dtype=torch.float64)
    for token, slot in itertools.product(range(7), range(2)):
        gate, up = (wide[1][ids[token, slot]] @ wide[0][token]).chunk(2)
        wanted[token] += weights[token, slot] * (wide[2][ids[token, slot]] @ (torch.nn.functional.silu(gate) * up))
    assert (output.double() - wanted).norm() < 0.05 * wanted.norm()
    assert scales_of(layer, x, None) is None
    assert scales_of(layer, x, of_x.to(torch.float8_e8m0fnu)) is None
    assert scales_of(SimpleNamespace(**{**vars(layer), "block_shape": None}), x, of_x) is None
    assert not serves(layer, x, w1, ids, Activation.SILU, None, None), "scales of rows or of tensors"
    assert not serves(layer, x, w1[:, :192], ids, Activation.SILU, None, scales)


def test_experts_that_are_taken(vllm: Any) -> None:
    import gemmill_vllm
    from gemmill_vllm.experts import serves
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

    layer, (x, w1, w2, weights, ids), others = _experts(False)
    assert serves(layer, x, w1, ids, Activation.SILU, None)
    assert not serves(layer, x, w1, ids, Activation.SWIGLUOAI, None)
    assert not serves(layer, x, w1, ids, Activation.SILU, torch.arange(4))
    assert not serves(layer, x, w1.to(torch.float8_e4m3fn), ids, Activation.SILU, None)
    assert not serves(layer, x.float(), w1.float(), ids, Activation.SILU, None)
    for name, value in (("_lora_context", 1), ("activation_config", SimpleNamespace(clamp_limit=7.0))):
        changed = SimpleNamespace(**{**vars(layer), name: value})
        assert not serves(changed, x, w1, ids, Activation.SILU, None)
    for limit in (None, 7.0):
        older = SimpleNamespace(_lora_context=None, gemm1_clamp_limit=limit)
        assert serves(older, x, w1, ids, Activation.SILU, None) is (limit is None)
    gemmill_vllm.register()
    applied = TritonExperts.apply
    gemmill_vllm.register()
    assert TritonExperts.apply is applied
    call = {"hidden_states": x, "w1": w1, "w2": w2, "topk_weights": weights, "topk_ids": ids, **others}
    with pytest.raises(NotImplementedError):  # of what is recorded: on the CPU all goes to what was there
        applied(layer, torch.empty_like(x), **call)


@pytest.mark.parametrize("is_on", [False, True])
def test_products_in_the_batch_invariant_mode(vllm: Any, is_on: bool) -> None:
    from gemmill_vllm.fp8 import GemmillFP8LinearKernel
    from gemmill_vllm.unquantized import linear

    vars(sys.modules["vllm.envs"])["VLLM_BATCH_INVARIANT"] = is_on
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((3, 64), (16, 64), (16,)))
    u4, fp8 = _u4(vllm, False), GemmillFP8LinearKernel.__new__(GemmillFP8LinearKernel)
    layer = torch.nn.Module()
    layer.q, layer.s = torch.zeros(16, 32, dtype=torch.uint8).mT, torch.ones(2, 16).bfloat16()
    u4._zeros = layer.s * 8
    scales = dict.fromkeys(("As", "Bs"), torch.ones(1))
    with OptionTexts() as kept:
        linear(x, weight, None)
        linear(x, weight, bias)
        u4.apply_weights(layer, x)
        e4m3 = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t()
        fp8.apply_scaled_mm(A=e4m3[0], B=e4m3[1], out_dtype=torch.bfloat16, **scales, bias=None, output_shape=[3, 16])
    assert kept.texts == ["bits='invariant'" if is_on else ""] * 4
