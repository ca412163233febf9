"""``moe`` on a GPU, beside a plain reference in float64, and to the bit where every sum is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.gpu.harness import torch

import gemmill.torch
from gemmill.library.e2m1 import VALUES

pytestmark = pytest.mark.gpu

LIMIT = 7.0
OPENAI = "g = min(gate + bg[n], limit); u = clamp(up + bu[n], -limit, limit); d = (u + 1) * g * sigmoid(1.702 * g)"
OPENAI_8 = OPENAI.replace("gate +", "gate8 +").replace("up +", "up8 +")
TOKENS, SLOTS, EXPERTS, HIDDEN, INNER = 200, 4, 12, 256, 192


def openai(gate: Any, up: Any) -> Any:
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def gated(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda gate, up: function(gate) * up


functional = torch.nn.functional
ACTIVATIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "silu": (8, gated(functional.silu)),
    "gelu": (8, gated(functional.gelu)),
    "gelu_tanh": (8, gated(lambda x: functional.gelu(x, approximate="tanh"))),
    "relu": (8, gated(functional.relu)),
    "d = silu(gate) * up": (1, gated(functional.silu)),
    OPENAI: (1, openai),
    OPENAI_8: (8, openai),
    "d = relu(acc) * relu(acc)": (0, lambda sums: functional.relu(sums).square()),
}
"""By the activation of a call: the rows of a run in w1, and what it computes of gate and up."""


def parted(rows: Any, run: int) -> tuple[Any, ...]:
    """Gate and up of values (..., N), or the values themselves for an activation without a gate."""
    if not run:
        return (rows,)
    runs = rows.unflatten(-1, (-1, 2, run))
    return runs[..., 0, :].flatten(-2), runs[..., 1, :].flatten(-2)


class Layer(NamedTuple):
    """Operands of a layer, and what its experts give for each token."""

    x: Any
    w1: Any
    w2: Any
    y: Any
    """(experts, tokens, H) in float64."""
    errors: Any
    """Bounds of the errors of ``y``."""
    keywords: dict[str, Any]

    def check(self, out: Any, ids: Any, weights: Any) -> None:
        """``out`` is the sum of the experts of each token, within the errors of its roundings."""
        used = (ids >= 0) & (ids < len(self.y))
        at = ids.long().where(used, 0), torch.arange(len(ids), device="cuda")[:, None]
        factors = weights.double().where(used, 0)[..., None]
        wanted = (factors * self.y[at]).sum(1)
        error = (factors.abs() * self.errors[at]).sum(1) + wanted.abs() * 2 * torch.finfo(out.dtype).eps
        wrong = ~((out.double() - wanted).abs() <= error + 1e-6)
        assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} are wrong, first {wrong.nonzero()[:1].tolist()}"


def layer_of(
    activation: str, dtype: Any, tokens: int = TOKENS, *, columns_first: bool = False, w_dtype: str | None = None
) -> Layer:
    """Random operands of a layer. With ``w_dtype`` its weights are packed, in groups of 64 and of 32."""
    run, compute = ACTIVATIONS[activation]
    torch.manual_seed(len(activation))

    def drawn(*shape: int, scale: float = 1.0) -> Any:
        return (torch.randn(shape, device="cuda") * scale).to(dtype)

    x = drawn(tokens, HIDDEN)
    w1 = drawn(EXPERTS, INNER * (2 if run else 1), HIDDEN, scale=HIDDEN**-0.5)
    w2, b2 = drawn(EXPERTS, HIDDEN, INNER, scale=INNER**-0.5), drawn(EXPERTS, HIDDEN)
    if columns_first:
        w1, w2 = w1.mT.contiguous().mT, w2.mT.contiguous().mT
    keywords: dict[str, Any] = {"activation": activation, "b2": b2}
    packed = w1, w2
    if w_dtype:
        (held1, w1, of_w1), (held2, w2, of_w2) = narrowed(w1, w_dtype, 64), narrowed(w2, w_dtype, 32)
        packed, keywords["w_dtype"] = (held1, held2), w_dtype
        keywords |= {f"w1_{name}": x for name, x in of_w1.items()} | {f"w2_{name}": x for name, x in of_w2.items()}
    sums = torch.einsum("th,enh->etn", x.double(), w1.double())
    slack = 2.0**-20 * torch.einsum("th,enh->etn", x.double().abs(), w1.double().abs())
    parts = parted(sums, run)
    if activation in (OPENAI, OPENAI_8):
        bias = {"bg": drawn(EXPERTS, INNER), "bu": drawn(EXPERTS, INNER)}
        keywords |= {**bias, "limit": LIMIT}
        parts = tuple(part + b.double()[:, None] for part, b in zip(parts, bias.values(), strict=True))
    inner, eps = compute(*parts), torch.finfo(dtype).eps
    beside = sum(2 * (1 + part.abs()) for part in parts)  # a bound of the slope
    error = eps * inner.abs() + sum(part * beside for part in parted(slack, run))
    y = torch.einsum("etf,ehf->eth", inner, w2.double()) + b2.double()[:, None]
    error = torch.einsum("etf,ehf->eth", error + 2.0**-20 * inner.abs(), w2.double().abs()) + eps * y.abs()
    return Layer(x, *packed, y, error, keywords)


LEVELS = {"u4": (0, 15), "s4": (-8, 7)}
"""Numbers of narrow weights."""


def narrowed_to_mxfp4(weights: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The same of e2m1 numbers."""
    groups = weights.float().unflatten(-1, (-1, 32))
    exponents = (groups.abs().amax(-1).clamp(min=2.0**-20) / 6).log2().ceil()
    scaled = groups / exponents.exp2()[..., None]
    values = torch.tensor(VALUES, device="cuda")
    codes = (scaled[..., None] - values).abs().argmin(-1)
    exact = (values[codes] * exponents.exp2()[..., None]).flatten(-2)
    numbers = codes.flatten(-2).to(torch.uint8)
    blocks = numbers[..., 0::2] | numbers[..., 1::2] << 4
    held, scale = gemmill.torch.mxfp4(blocks, (exponents + 127).to(torch.uint8), weights.dtype)
    return held, exact.to(weights.dtype), {"scale": scale}


def narrowed(weights: Any, dtype: str, size: int) -> tuple[Any, Any, dict[str, Any]]:
    """Weights (experts, N, K) in bytes, what they stand for, and scales and zero points of groups of ``size``."""
    if dtype == "e2m1":
        return narrowed_to_mxfp4(weights)
    if dtype == "e4m3":
        held = weights.to(torch.float8_e4m3fn)
        return held, held.to(weights.dtype), {}
    if dtype == "s8":  # a scale a row
        scale = (weights.float().abs().amax(-1, keepdim=True) / 127).to(weights.dtype)
        held = (weights.float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
        groups = scale.expand(*weights.shape[:2], -(-weights.shape[2] // 128))
        return held, held.to(weights.dtype) * scale, {"scale": groups.mT.contiguous()}
    low, high = LEVELS[dtype]
    groups = weights.float().unflatten(-1, (-1, size))
    scale = (groups.abs().amax(-1) / (high - low) * 2).to(weights.dtype)
    zero = torch.randint(6, 10, scale.shape, device="cuda").to(weights.dtype) if dtype == "u4" else scale * 0
    numbers = (groups / scale.float()[..., None]).round().add(zero.float()[..., None]).clamp(low, high)
    exact = ((numbers.to(weights.dtype) - zero[..., None]) * scale[..., None]).flatten(-2)
    held = packed_in_bytes(numbers.flatten(-2))
    of_groups = {"scale": scale.mT.contiguous()} | ({"zero": zero.mT.contiguous()} if dtype == "u4" else {})
    return held, exact, of_groups


def packed_in_bytes(numbers: Any) -> Any:
    """Numbers of 4 bits, two in a byte."""
    low, high = numbers.int()[..., 0::2] & 15, numbers.int()[..., 1::2] & 15
    return (low | high << 4).to(torch.uint8)


DISTRIBUTIONS = ("uniform", "zipf", "one", "single", "none", "beyond")


def ids_of(how: str, tokens: int, slots: int, experts: int) -> Any:
    """Experts of tokens, int32."""
    shape = tokens, slots
    if how == "uniform":
        ids = torch.rand(tokens, experts, device="cuda").topk(min(slots, experts)).indices
        ids = torch.cat([ids, ids.new_full((tokens, slots - ids.shape[1]), -1)], 1)
    elif how == "zipf":
        ids = (torch.rand(shape, device="cuda").reciprocal() - 1).clamp(max=experts - 1)
    elif how == "one":
        ids = torch.full(shape, experts // 2, device="cuda")
    elif how == "single":  # one token for an expert, and the others for none
        ids = torch.arange(tokens * slots, device="cuda").view(shape)
    elif how == "none":
        ids = torch.full(shape, -1, device="cuda")
    else:
        ids = torch.randint(-2, experts + 2, shape, device="cuda")
    return ids.int()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, dtype: Any) -> None:
    layer = layer_of(activation, dtype)
    for how in DISTRIBUTIONS:
        ids, weights = ids_of(how, TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda")
        layer.check(gemmill.moe(layer.x, layer.w1, layer.w2, ids, weights, **layer.keywords), ids, weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("w_dtype", [*LEVELS, "e2m1", "e4m3", "s8"])
@pytest.mark.parametrize("activation", ["silu", OPENAI_8, "d = relu(acc) * relu(acc)"])
def test_narrow_weights(activation: str, w_dtype: str, dtype: Any) -> None:
    layer = layer_of(activation, dtype, w_dtype=w_dtype)
    arguments = layer.x, layer.w1, layer.w2
    for how in DISTRIBUTIONS:
        ids, weights = ids_of(how, TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda")
        found = gemmill.moe(*arguments, ids, weights, **layer.keywords)
        layer.check(found, ids, weights)
        assert torch.equal(gemmill.torch.moe(*arguments, ids, weights, **layer.keywords), found)


@pytest.mark.parametrize(("tokens", "slots"), [(0, 4), (1, 1), (3, 0), (1, 16), (40, 16), (2000, 4)])
def test_few_and_many_tokens_of_narrow_weights(tokens: int, slots: int) -> None:
    layer = layer_of("silu", torch.bfloat16, tokens, w_dtype="u4")
    ids, weights = ids_of("beyond", tokens, slots, EXPERTS), torch.ones(tokens, slots, device="cuda")
    layer.check(gemmill.moe(layer.x, layer.w1, layer.w2, ids, None, **layer.keywords), ids, weights)


def test_weights_may_be_stored_by_columns_and_ids_have_64_bits() -> None:
    layer = layer_of("d = silu(gate) * up", torch.bfloat16, columns_first=True)
    ids, weights = ids_of("uniform", TOKENS, SLOTS, EXPERTS).long(), torch.rand(TOKENS, SLOTS, device="cuda").bfloat16()
    out = torch.empty(TOKENS, HIDDEN, device="cuda")
    assert gemmill.moe(layer.x, layer.w1, layer.w2, ids, weights, out=out, **layer.keywords) is out
    layer.check(out, ids, weights)


@pytest.mark.parametrize(("tokens", "slots"), [(0, 4), (1, 1), (3, 0), (1, 16), (40, 16)])
def test_few_tokens(tokens: int, slots: int) -> None:
    layer = layer_of("silu", torch.bfloat16, tokens)
    ids, weights = ids_of("beyond", tokens, slots, EXPERTS), torch.ones(tokens, slots, device="cuda")
    layer.check(gemmill.moe(layer.x, layer.w1, layer.w2, ids, None, **layer.keywords), ids, weights)


@pytest.mark.parametrize("activation", ["silu", "d = relu(acc) * relu(acc)"])
def test_rows_that_are_not_aligned_are_copied(activation: str) -> None:
    layer = layer_of(activation, torch.bfloat16)
    ids, weights = ids_of("beyond", TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda")
    arguments = layer.w1, layer.w2, ids, weights
    x = torch.empty(TOKENS * HIDDEN + 1, dtype=torch.bfloat16, device="cuda")[1:].view(TOKENS, HIDDEN).copy_(layer.x)
    out = gemmill.moe(x, *arguments, **layer.keywords)
    layer.check(out, ids, weights)
    with_bits = [gemmill.moe(y, *arguments, **layer.keywords, bits="invariant") for y in (x, layer.x)]
    assert torch.equal(*with_bits), "a copy has the bits of gathered rows"


def test_x_may_be_overwritten() -> None:
    layer = layer_of("silu", torch.bfloat16)
    ids, weights = ids_of("uniform", TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda")
    x = layer.x.clone()
    assert gemmill.moe(x, layer.w1, layer.w2, ids, weights, out=x, **layer.keywords) is x
    layer.check(x, ids, weights)


@pytest.mark.parametrize("w_dtype", [None, "u4", "e2m1"])
def test_a_token_has_the_same_bits_in_every_batch(w_dtype: str | None) -> None:
    layer = layer_of("silu", torch.bfloat16, w_dtype=w_dtype)
    ids, weights = ids_of("uniform", TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda")
    keywords = layer.keywords | {"bits": "invariant"}
    whole = gemmill.moe(layer.x, layer.w1, layer.w2, ids, weights, **keywords)
    for tokens in (1, 7, 100):
        part = gemmill.moe(layer.x[:tokens], layer.w1, layer.w2, ids[:tokens], weights[:tokens], **keywords)
        assert torch.equal(part, whole[:tokens])


@pytest.mark.parametrize("w_dtype", [None, "u4"])
def test_a_call_can_be_captured(w_dtype: str | None) -> None:
    layer = layer_of("silu", torch.bfloat16, w_dtype=w_dtype)
    ids, weights = ids_of("uniform", TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda")
    arguments = layer.x, layer.w1, layer.w2, ids, weights
    gemmill.moe(*arguments, **layer.keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmill.moe(*arguments, **layer.keywords)
    for how in DISTRIBUTIONS:
        ids.copy_(ids_of(how, TOKENS, SLOTS, EXPERTS))
        graph.replay()
        layer.check(out, ids, weights)


def quantised(values: Any, rows: int, scale_dtype: Any) -> tuple[Any, Any, Any]:
    """Values in e4m3, what they stand for in float64, and the scales of their blocks."""
    blocks = values.unflatten(-1, (-1, 128)).unflatten(-3, (-1, rows))
    scales = blocks.abs().amax((-3, -1), keepdim=True) / 448
    if scale_dtype != torch.float32:
        scales = scales.log2().ceil().exp2()
    held = (blocks / scales).to(torch.float8_e4m3fn)
    exact = held.double() * scales.double()
    return (*(x.flatten(-4, -3).flatten(-2) for x in (held, exact)), scales.squeeze((-3, -1)).to(scale_dtype))


HALVES = "d = silu(gate_half) * up_half"
E8M0 = torch.float8_e8m0fnu


@pytest.mark.parametrize("how", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("activation", "hidden", "of_scales"),
    [
        *((activation, 512, torch.float32) for activation in ("silu", OPENAI, HALVES)),
        *(("silu", 128, torch.float32), ("silu", 512, E8M0), (HALVES, 640, E8M0), (HALVES, 128, E8M0)),
    ],
    ids=str,
)
def test_layers_of_e4m3(activation: str, hidden: int, of_scales: Any, how: str) -> None:
    run, compute = (256, gated(functional.silu)) if activation == HALVES else ACTIVATIONS[activation]
    torch.manual_seed(1)
    x, x_exact, x_scale = quantised(torch.randn(TOKENS, hidden, device="cuda"), 1, of_scales)
    w1, w1_exact, w1_scale = quantised(torch.randn(EXPERTS, 512, hidden, device="cuda") / hidden**0.5, 128, of_scales)
    w2, w2_exact, w2_scale = quantised(torch.randn(EXPERTS, hidden, 256, device="cuda") / 16, 128, of_scales)
    keywords: dict[str, Any] = {"b2": torch.randn(EXPERTS, hidden, device="cuda").bfloat16()}
    parts = parted(torch.einsum("th,enh->etn", x_exact, w1_exact), run)
    if activation == OPENAI:
        bias = {"bg": torch.randn(EXPERTS, 256, device="cuda"), "bu": torch.randn(EXPERTS, 256, device="cuda")}
        keywords |= {**bias, "limit": LIMIT}
        parts = tuple(part + b.double()[:, None] for part, b in zip(parts, bias.values(), strict=True))
    y = torch.einsum("etf,ehf->eth", compute(*parts), w2_exact) + keywords["b2"].double()[:, None]
    ids, weights = ids_of(how, TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda") + 0.1
    scales = {"x_scale": x_scale, "w1_scale": w1_scale, "w2_scale": w2_scale}
    found = gemmill.moe(x, w1, w2, ids, weights, activation=activation, **scales, **keywords)
    used = (ids >= 0) & (ids < EXPERTS)
    at = ids.long().where(used, 0), torch.arange(TOKENS, device="cuda")[:, None]
    rows = weights.double().where(used, 0)[..., None] * y[at]
    error = (found.double() - rows.sum(1)).norm(dim=1)
    assert found.dtype == torch.bfloat16
    assert bool((error <= 0.06 * rows.norm(dim=(1, 2))).all()), "e4m3 rounds to about 0.025"
    again = gemmill.torch.moe(x, w1, w2, ids, weights, activation=activation, **scales, **keywords)
    assert torch.equal(again, found)
    moved = torch.empty(x.numel() + 1, dtype=torch.uint8, device="cuda")[1:].view(x.shape)
    moved.copy_(x.view(torch.uint8))
    scales["x_scale"] = x_scale.mT.contiguous().mT
    again = gemmill.moe(moved.view(x.dtype), w1, w2, ids, weights, activation=activation, **scales, **keywords)
    assert torch.equal(again, found), "copies have the bits of tokens anywhere"


@pytest.mark.parametrize("how", DISTRIBUTIONS)
def test_e4m3_tokens_with_s4_weights(how: str) -> None:
    torch.manual_seed(2)
    hidden, inner = 512, 320
    x = torch.randn(TOKENS, hidden, device="cuda")
    x_scale = x.abs().amax(1, keepdim=True) / 448
    held = (x / x_scale).to(torch.float8_e4m3fn)
    w1, w1_exact, of_w1 = narrowed(torch.randn(EXPERTS, 2 * inner, hidden, device="cuda") / hidden**0.5, "s4", 128)
    w2, w2_exact, of_w2 = narrowed((torch.randn(EXPERTS, hidden, inner, device="cuda") / 18).bfloat16(), "s4", 64)
    sums = torch.einsum("th,enh->etn", held.double() * x_scale.double(), w1_exact.double())
    y = torch.einsum("etf,ehf->eth", gated(functional.silu)(*parted(sums, 8)), w2_exact.double())
    ids, weights = ids_of(how, TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda") + 0.1
    scales = {"x_scale": x_scale, "w1_scale": of_w1["scale"], "w2_scale": of_w2["scale"], "w_dtype": "s4"}
    found = gemmill.moe(held, w1, w2, ids, weights, **scales)
    used = (ids >= 0) & (ids < EXPERTS)
    at = ids.long().where(used, 0), torch.arange(TOKENS, device="cuda")[:, None]
    rows = weights.double().where(used, 0)[..., None] * y[at]
    error = (found.double() - rows.sum(1)).norm(dim=1)
    assert found.dtype == torch.bfloat16
    assert bool((error <= 0.01 * rows.norm(dim=(1, 2))).all())
    assert torch.equal(gemmill.torch.moe(held, w1, w2, ids, weights, **scales), found)
    plan = gemmill.plan_moe(held, w1, w2, ids, weights, **scales)
    ids.copy_(ids.roll(1, 0))
    plan()
    assert torch.equal(plan.out, gemmill.moe(held, w1, w2, ids, weights, **scales))


def signature(seed: int) -> tuple[int, int, int, int, int]:
    """Tokens, slots, experts, H and F of a fuzzed layer."""
    draw = torch.Generator().manual_seed(seed)

    def one_of(*values: int) -> int:
        return values[int(torch.randint(len(values), (), generator=draw))]

    experts = one_of(1, 2, 5, 16, 40, 128)
    return (
        one_of(1, 3, 17, 64, 200, 700),
        one_of(1, 2, 4, 8, 10),
        experts,
        one_of(64, 136, 256, 520),
        one_of(8, 64, 200),
    )


def check_layers(seed: int, count: int, narrow: bool = False) -> None:
    """Compare a plan with a reference to the bit, for many distributions of the tokens.

    A token has at most 16 elements that are not 0, and a row of the second weights one, so that bf16 has all values.
    """
    tokens, slots, experts, hidden, inner = signature(seed)
    if narrow:
        hidden, inner = hidden // 32 * 32, -(-inner // 32) * 32
    torch.manual_seed(seed)
    x = torch.zeros(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    x.scatter_(1, torch.randint(hidden, (tokens, 16), device="cuda"), 1)
    w1 = torch.randint(-1, 2, (experts, 2 * inner, hidden), device="cuda").bfloat16()
    w2 = torch.zeros(experts, hidden, inner, device="cuda", dtype=torch.bfloat16)
    w2.scatter_(2, torch.randint(inner, (experts, hidden, 1), device="cuda"), -1)
    ids = torch.zeros(tokens, slots, dtype=torch.int32, device="cuda")
    weights, out = torch.zeros(tokens, slots, device="cuda"), torch.zeros(tokens, hidden, device="cuda")
    gate, up = parted(torch.einsum("th,enh->etn", x.float(), w1.float()), 8)
    y = torch.einsum("etf,ehf->eth", gate.relu() * up, w2.float())
    keywords: dict[str, Any] = {"activation": "relu"}
    if narrow:
        w1, w2, keywords = *(packed_in_bytes(w + 7) for w in (w1, w2)), keywords | {"w_dtype": "u4"}
        for name, k, n in (("w1", hidden, 2 * inner), ("w2", inner, hidden)):
            groups = torch.ones(experts, -(-k // (32 << seed % 3)), n, dtype=torch.bfloat16, device="cuda")
            keywords |= {f"{name}_scale": groups, f"{name}_zero": groups * 7}
    with gemmill.plan_moe(x, w1, w2, ids, weights, out=out, **keywords) as plan:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan()
        for i in range(count):
            ids.copy_(ids_of(DISTRIBUTIONS[i % len(DISTRIBUTIONS)], tokens, slots, experts))
            weights.copy_(torch.randint(1, 9, (tokens, slots), device="cuda") / 4)
            (graph.replay if i % 2 else plan)()
            used = (ids >= 0) & (ids < experts)
            rows = y[ids.long().where(used, 0), torch.arange(tokens, device="cuda")[:, None]]
            wanted = (rows * weights.where(used, 0)[..., None]).sum(1)
            assert torch.equal(out, wanted), f"layer {i} of {signature(seed)}"


@pytest.mark.parametrize("seed", range(16))
def test_layers_to_the_bit(seed: int) -> None:
    check_layers(seed, 640)  # 10,240 layers in all


@pytest.mark.parametrize("seed", range(12))
def test_layers_of_narrow_weights_to_the_bit(seed: int) -> None:
    check_layers(seed, 200, narrow=True)


@pytest.mark.parametrize("how", ["uniform", "one", "beyond", "none"])
@pytest.mark.parametrize("activation", ["silu", OPENAI])
def test_gradients_are_those_of_float64(activation: str, how: str) -> None:
    layer, (run, compute) = layer_of(activation, torch.bfloat16), ACTIVATIONS[activation]
    ids, weights = ids_of(how, TOKENS, SLOTS, EXPERTS), torch.rand(TOKENS, SLOTS, device="cuda")
    tensors = {"x": layer.x, "w1": layer.w1, "w2": layer.w2, "weights": weights}
    tensors |= {name: x for name, x in layer.keywords.items() if isinstance(x, torch.Tensor)}
    others = {name: x for name, x in layer.keywords.items() if name not in tensors}
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    exact = {name: x.double().requires_grad_() for name, x in tensors.items()}

    def plain(x: Any, w1: Any, w2: Any, weights: Any, b2: Any, **biases: Any) -> Any:
        parts = parted(torch.einsum("th,enh->etn", x, w1), run)
        parts = tuple(part + b[:, None] for part, b in zip(parts, biases.values(), strict=True)) if biases else parts
        y = torch.einsum("etf,ehf->eth", compute(*parts), w2) + b2[:, None]
        used = (ids >= 0) & (ids < EXPERTS)
        at = ids.long().where(used, 0), torch.arange(TOKENS, device="cuda")[:, None]
        return (weights.where(used, 0)[..., None] * y[at]).sum(1)

    def of_operator(x: Any, w1: Any, w2: Any, weights: Any, **named: Any) -> Any:
        return gemmill.torch.moe(x, w1, w2, ids, weights, **named, **others)

    g = torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
    wanted = torch.autograd.grad(plain(**exact), [*exact.values()], g.double())
    for program in (of_operator, torch.compile(of_operator, fullgraph=True, backend="aot_eager")):
        found = torch.autograd.grad(program(**leaves), [*leaves.values()], g)
        for name, x, y in zip(leaves, found, wanted, strict=True):
            assert (x.double() - y).norm() <= 2.0**-6 * y.norm(), name
