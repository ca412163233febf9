"""Layers that store their weights narrow, and models converted to them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import wide  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.e2m1 import VALUES  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402
from gemmill.runtime.torch import calls  # noqa: E402
from gemmill.runtime.torch.layers.weight_formats import FORMATS  # noqa: E402
from gemmill.runtime.torch.takeover.blocks import ENABLED  # noqa: E402

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
ERRORS = {"bf16": 2**-7, "f16": 2**-9, "e4m3": 0.05, "u4": 0.12, "mxfp4": 0.17}
"""Of D, relative to its norm."""


def linear(k: int = 256, n: int = 144, bias: bool = True, dtype: Any = BF16, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(k, n, bias=bias).to(dtype)


def rows(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def distance(found: Any, wanted: Any) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weights", FORMATS)
def test_layers_give_what_linear_gives(weights: str, bias: bool, activation: str | None) -> None:
    dtype = torch.float16 if weights == "f16" else BF16
    plain = linear(bias=bias, dtype=dtype)
    mine = gemmill.torch.Linear.from_linear(plain, weights, activation)
    x = rows(2, 5, 256, dtype=dtype)
    with torch.no_grad():
        wanted = plain.double()(x.double())
        wanted = torch.nn.functional.silu(wanted) if activation else wanted
        found = mine(x)
    assert (found.shape, found.dtype) == ((2, 5, 144), dtype)
    assert distance(found, wanted) < ERRORS[weights.partition("_")[0]]
    assert mine(x[0, 0]).shape == (144,)
    assert mine(x[:0]).shape == (0, 5, 144)


@pytest.mark.parametrize("weights", ["e4m3_blocks", "u4_g128"])
def test_extents_that_no_block_divides(weights: str) -> None:
    plain = linear(200, 136)
    x = rows(5, 200)
    with torch.no_grad():
        assert distance(gemmill.torch.Linear.from_linear(plain, weights)(x), plain(x)) < 0.15


def test_zeros_stay_zeros() -> None:
    plain = torch.nn.Linear(128, 128, bias=False).to(BF16)
    torch.nn.init.zeros_(plain.weight)
    for weights in FORMATS:
        x = torch.zeros(2, 128, dtype=torch.float16 if weights == "f16" else BF16)
        assert not gemmill.torch.Linear.from_linear(plain, weights)(x).any()


@pytest.mark.parametrize("weights", FORMATS)
def test_state_dicts_round_trip(weights: str, tmp_path: Any) -> None:
    mine = gemmill.torch.Linear.from_linear(linear(), weights)
    torch.save(mine.state_dict(), tmp_path / "layer.pt")
    other = gemmill.torch.Linear(256, 144, weights=weights, device="meta").to_empty(device="cpu")
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert repr(other) == repr(mine)
    assert {x: y.dtype for x, y in other.state_dict().items()} == {x: y.dtype for x, y in mine.state_dict().items()}
    x = rows(3, 256, dtype=torch.float16 if weights == "f16" else BF16)
    assert torch.equal(other(x), mine(x))


@pytest.mark.parametrize("weights", ["e4m3_blocks", "mxfp4"])
def test_conversions_of_a_module_leave_narrow_weights_and_scales(weights: str) -> None:
    mine = gemmill.torch.Linear.from_linear(linear(bias=False), weights)
    before = copy.deepcopy(mine.state_dict())
    mine.to(torch.float16).float().to(BF16).cpu()
    for name, x in before.items():
        assert torch.equal(mine.state_dict()[name].float(), x.float())
        assert mine.state_dict()[name].dtype == x.dtype


@pytest.mark.parametrize("weights", ["bf16", "e4m3_rows", "e4m3_blocks", "u4_g128", "mxfp4"])
def test_layers_compile_and_export(weights: str) -> None:
    torch.compiler.reset()
    mine, x = gemmill.torch.Linear.from_linear(linear(), weights, "relu"), rows(3, 256)
    with torch.no_grad():
        wanted = mine(x)
        assert distance(torch.compile(mine, fullgraph=True, backend="aot_eager")(x), wanted) < 2**-7
        exported = torch.export.export(mine, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
        assert exported.module()(rows(7, 256)).shape == (7, 144)


def test_wide_weights_are_shared_and_trained() -> None:
    plain = linear(bias=False)
    mine = gemmill.torch.Linear.from_linear(plain, "bf16")
    assert mine.weight is plain.weight
    x = rows(3, 256)
    mine(x).sum().backward()
    grad, plain.weight.grad = plain.weight.grad, None
    plain(x).sum().backward()
    torch.testing.assert_close(grad, plain.weight.grad, rtol=2**-6, atol=2**-6)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([linear(seed=i, n=256) for i in range(2)])
        self.twice = self.layers[0]
        self.lm_head = linear(n=32, bias=False)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.twice(x))


def kinds(model: Any) -> dict[str, str]:
    return {
        name: getattr(x, "weights", type(x).__name__) for name, x in model.named_modules() if not len([*x.children()])
    }


def test_a_model_is_converted_in_place_or_as_a_copy() -> None:
    model, x = Net(), rows(3, 256)
    wanted = model(x)
    other = gemmill.torch.convert(model, "e4m3_rows", skip=("lm_head",), inplace=False)
    assert set(kinds(model).values()) == {"Linear"}
    assert kinds(other) == {"layers.0": "e4m3_rows", "layers.1": "e4m3_rows", "lm_head": "Linear"}
    assert other.twice is other.layers[0]
    with torch.no_grad():
        assert distance(other(x), wanted) < 0.15
    assert gemmill.torch.convert(model, skip=("layers.1", "twice")) is model
    assert kinds(model) == {"layers.0": "Linear", "layers.1": "Linear", "lm_head": "e4m3_rows"}
    assert isinstance(gemmill.torch.convert(linear(), "u4_g64"), gemmill.torch.Linear)


def quantised(**tensors: Any) -> Any:
    module = torch.nn.Module()
    for name, x in tensors.items():
        module.register_buffer(name, x)
    return torch.nn.Sequential(module)


N, K = 144, 256
WEIGHT = wide(N, K).to(E4M3)
CHECKPOINTS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "of all": ({"weight_scale": torch.tensor(0.5)}, torch.full((N, K), 0.5), "e4m3_rows"),
    "of rows": (
        {"weight_scale": torch.arange(1.0, N + 1)},
        torch.arange(1.0, N + 1)[:, None].expand(N, K),
        "e4m3_rows",
    ),
    "of blocks": (
        {"weight_scale_inv": torch.tensor([[1.0, 2.0], [4.0, 8.0]])},
        torch.tensor([[1.0, 2.0], [4.0, 8.0]]).repeat_interleave(128, 0).repeat_interleave(128, 1)[:N],
        "e4m3_blocks",
    ),
}


@pytest.mark.parametrize("form", CHECKPOINTS)
def test_checkpoints_of_e4m3(form: str) -> None:
    tensors, scale, weights = CHECKPOINTS[form]
    (mine,) = gemmill.torch.convert(quantised(weight=WEIGHT, **tensors, bias=wide(N)), None)
    assert mine.weights == weights
    x = wide(5, K)
    wanted = x.double() @ (WEIGHT.double() * scale.double()).mT + wide(N).double()
    assert distance(mine(x), wanted) < 0.03


def words(values: Any, order: Any) -> Any:
    """Eight values of 4 bits in an int32 along the last axis."""
    parts = values.long().unflatten(-1, (-1, 8))
    packed = sum(parts[..., column] << 4 * i for i, column in enumerate(order))
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


@pytest.mark.parametrize("scheme", ["awq", "gptq", "gptq_v2"])
def test_checkpoints_of_4_bits(scheme: str) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 16, (K, N), generator=generator)
    zeros = torch.randint(1, 16, (K // 64, N), generator=generator)
    scales = torch.rand(K // 64, N, generator=generator).to(BF16)
    if scheme == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        model = quantised(qweight=words(values, order), qzeros=words(zeros, order), scales=scales)
    else:
        kept = zeros if scheme == "gptq_v2" else zeros - 1
        packed = words(values.mT, range(8)).mT.contiguous()
        model = quantised(qweight=packed, qzeros=words(kept, range(8)), scales=scales, g_idx=torch.arange(K) // 64)
        model[0].checkpoint_format = scheme
    (mine,) = gemmill.torch.convert(model, None)
    assert mine.weights == "u4_g64"
    x = wide(5, K)
    spread = [y.double().repeat_interleave(64, 0) for y in (zeros, scales)]
    assert distance(mine(x), x.double() @ ((values.double() - spread[0]) * spread[1])) < 2**-7


@pytest.mark.parametrize("weight", ["weight_packed", "weight"])
def test_checkpoints_of_mxfp4(weight: str) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (N, K // 2), generator=generator).to(torch.uint8)
    scales = torch.randint(118, 126, (N, K // 32), generator=generator).to(torch.uint8)
    (mine,) = gemmill.torch.convert(quantised(**{weight: packed}, weight_scale=scales, bias=wide(N)), None)
    assert mine.weights == "mxfp4"
    nibbles = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
    values = torch.tensor(VALUES, dtype=torch.float64)[nibbles.long()]
    values *= 2.0 ** (scales.double() - 127).repeat_interleave(32, 1)
    assert torch.equal(mine.dequantised().double(), values)
    x = wide(5, K)
    assert distance(mine(x), x.double() @ values.mT + wide(N).double()) < 2**-7


SCALES = torch.ones(K // 64, N)
BYTES = torch.zeros(N, K // 2, dtype=torch.uint8)
GPTQ = {"qweight": torch.zeros(K // 8, N, dtype=torch.int32), "qzeros": torch.zeros(4, N // 8, dtype=torch.int32)}


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"weight": WEIGHT}, "layer '0' has an e4m3 weight but neither weight_scale"),
        (
            {"weight": WEIGHT, "weight_scale": torch.ones(N, 2)},
            r"weight of shape \(144, 256\) and a scale of shape \(144, 2\)",
        ),
        ({"weight": WEIGHT.float().to(torch.float8_e5m2)}, "layer '0' has a float8_e5m2 weight"),
        (
            {"weight_packed": torch.zeros(3)},
            "layer '0' has weight_packed, of a quantisation scheme that is not supported",
        ),
        (
            {"weight_packed": BYTES, "weight_scale": BYTES[:, :8], "weight_global_scale": torch.ones(1)},
            "layer '0' has weight_packed, weight_global_scale, of a quantisation scheme that is not supported",
        ),
        (
            {"weight_packed": BYTES, "weight_scale": BYTES[:, :8] + 200},
            r"layer '0': the scale at \(0, 0\) is 200 .*: pass its name in skip",
        ),
        ({**GPTQ, "scales": SCALES[:1]}, "1 scales for 256 rows; groups must have 128, 64 or 32 rows"),
        ({**GPTQ, "scales": SCALES, "g_idx": torch.zeros(K)}, "rows reordered by g_idx"),
        ({**GPTQ, "scales": SCALES[:, :3]}, "not AWQ's or GPTQ's 4-bit layout"),
    ],
)
def test_other_schemes_are_refused_by_name(tensors: dict[str, Any], says: str) -> None:
    model = quantised(**tensors)
    with pytest.raises(OperandError, match=says):
        gemmill.torch.convert(model)
    assert gemmill.torch.convert(model, skip=("0",)) is model


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(OperandError, match=r"weights is 'e4m3_row'.*did you mean e4m3_rows"):
        gemmill.torch.convert(Net(), "e4m3_row")
    with pytest.raises(OperandError, match="activation is 'swish'"):
        gemmill.torch.Linear(8, 8, activation="swish")
    with pytest.raises(OperandError, match="'head' in skip matches no module"):
        gemmill.torch.convert(Net(), skip=("head",))


def test_layers_have_the_bits_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, kept = gemmill.torch.Linear.from_linear(linear(), "e4m3_rows"), []

    def multiply(a: Any, b: Any, **keywords: Any) -> Any:
        kept.append(keywords.get("bits", "any"))
        return torch.zeros(a.shape[0], b.shape[1])

    monkeypatch.setattr(calls, "matmul", multiply)
    layer(rows(3, 256))
    with ENABLED.within("invariant"):
        layer(rows(3, 256))
    assert kept == ["any", "invariant"]
