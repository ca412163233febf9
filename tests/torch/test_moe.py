"""The operator of a layer of experts on the CPU: values, fakes, gradients, compiled programs."""

from __future__ import annotations

import mmap
import platform
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import gemmill.torch  # noqa: E402
from gemmill.library.e2m1 import VALUES  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402

TOKENS, SLOTS, EXPERTS, HIDDEN, INNER = 7, 3, 4, 8, 8
IDS = torch.tensor([[0, 3, 1], [3, 3, 0], [-1, 4, 0], [-1, -1, -1], [3, 1, 0], [0, 3, 1], [1, 0, 3]], dtype=torch.int32)
"""Expert 2 has no token, and token 3 no expert."""
functional = torch.nn.functional
BIASED = "d = silu(gate + bg[n]) * (up + bu[n]) * s"


def operands(activation: str = "silu", dtype: Any = torch.float64) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a layer that require gradients, by position and by keyword."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()

    sums = INNER if "acc" in activation else 2 * INNER
    weights = drawn(TOKENS, SLOTS).float() if dtype == torch.bfloat16 else drawn(TOKENS, SLOTS)
    positional = [drawn(TOKENS, HIDDEN), drawn(EXPERTS, sums, HIDDEN), drawn(EXPERTS, HIDDEN, INNER), IDS, weights]
    biases = {"bg": drawn(EXPERTS, INNER), "bu": drawn(INNER), "s": 0.5} if activation == BIASED else {}
    return positional, {"activation": activation, "b2": drawn(EXPERTS, HIDDEN), **biases}


def silu_of_runs(sums: Any, **_: Any) -> Any:
    gate, up = sums.unflatten(-1, (-1, 2, 8)).unbind(-2)
    return (functional.silu(gate) * up).flatten(-2)


def silu_of_biased_pairs(sums: Any, bg: Any, bu: Any, s: float) -> Any:
    return functional.silu(sums[..., 0::2] + bg) * (sums[..., 1::2] + bu) * s


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "silu": silu_of_runs,
    BIASED: silu_of_biased_pairs,
    "d = tanh(acc)": lambda sums, **_: sums.tanh(),
}


def plain(x: Any, w1: Any, w2: Any, ids: Any, weights: Any, *, activation: str, b2: Any, **biases: Any) -> Any:
    """The layer by its definition, a token and a slot after another."""
    rows = []
    for token in range(len(x)):
        total = torch.zeros(x.shape[1], dtype=torch.float64)
        for slot, expert in enumerate(ids[token].tolist()):
            if 0 <= expert < len(w1):
                given = {name: b[expert] if getattr(b, "ndim", 0) == 2 else b for name, b in biases.items()}
                inner = ACTIVATIONS[activation](x[token].double() @ w1[expert].double().T, **given)
                y = inner @ w2[expert].double().T + b2[expert]
                total = total + (1 if weights is None else weights[token, slot]) * y
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients_are_those_of_the_definition(activation: str) -> None:
    positional, keywords = operands(activation)
    found, wanted = gemmill.torch.moe(*positional, **keywords), plain(*positional, **keywords)
    torch.testing.assert_close(found, wanted)
    leaves = [x for x in (*positional, *keywords.values()) if getattr(x, "requires_grad", False)]
    g = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for x, y in zip(torch.autograd.grad(found, leaves, g), torch.autograd.grad(wanted, leaves, g), strict=True):
        torch.testing.assert_close(x, y)


def test_each_gradient_alone() -> None:
    positional, keywords = operands(BIASED)
    arguments = {**dict(zip(("x", "w1", "w2", "ids", "weights"), positional, strict=True)), **keywords}
    names = [name for name, x in arguments.items() if getattr(x, "requires_grad", False)]
    whole = gemmill.torch.moe(*positional, **keywords).sum()
    for name, g in zip(names, torch.autograd.grad(whole, [arguments[name] for name in names]), strict=True):
        alone = {x: y.detach() if isinstance(y, torch.Tensor) and x != name else y for x, y in arguments.items()}
        first = [alone.pop(x) for x in ("x", "w1", "w2", "ids", "weights")]
        gemmill.torch.moe(*first, **alone).sum().backward(inputs=[arguments[name]])
        torch.testing.assert_close(arguments[name].grad, g)
        arguments[name].grad = None


def test_types_and_results_of_bf16() -> None:
    positional, keywords = operands(dtype=torch.bfloat16)
    positional[4] = positional[4].detach().requires_grad_()
    found = gemmill.torch.moe(*positional, **keywords, out_dtype=torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), plain(*positional, **keywords), rtol=0.05, atol=0.2)
    found.sum().backward()
    for x in (*positional, keywords["b2"]):
        if x.requires_grad:
            assert x.grad.dtype == x.dtype
            assert x.grad.isfinite().all()
    assert gemmill.torch.moe(*positional, **keywords).dtype == torch.bfloat16


def test_weights_of_1_and_ids_of_64_bits() -> None:
    positional, keywords = operands()
    x, w1, w2, ids, _ = positional
    found = gemmill.torch.moe(x, w1, w2, ids.long(), None, **keywords)
    torch.testing.assert_close(found, plain(x, w1, w2, ids, None, **keywords))
    found.sum().backward()
    assert x.grad is not None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only Linux on x86-64 has a flag for low addresses")
def test_cpu_memory_at_addresses_that_no_gpu_memory_has() -> None:
    map_32bit = 0x40  # from Linux's mman.h
    low = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_32bit)
    ids = torch.frombuffer(low, dtype=torch.int32, count=IDS.numel()).view_as(IDS).copy_(IDS)
    assert ids.data_ptr() < 1 << 32
    positional, keywords = operands(dtype=torch.bfloat16)
    wanted = gemmill.torch.moe(*positional, **keywords)
    positional[3] = ids
    assert torch.equal(gemmill.torch.moe(*positional, **keywords), wanted)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_opcheck(activation: str) -> None:
    (x, w1, w2, ids, weights), keywords = operands(activation)
    biases = {name: b for name, b in keywords.items() if name in ("bg", "bu")}
    numbers = [keywords["s"]] if "s" in keywords else []
    names = [*biases, *(["s"] if numbers else [])]
    arguments = (x, w1, w2, ids, weights, keywords["b2"], *[None] * 5, [*biases.values()], names)
    torch.library.opcheck(
        torch.ops.gemmill.moe.default, arguments, {"numbers": numbers, "activation": activation, "options": ""}
    )


@pytest.mark.parametrize("of_scales", [torch.float32, torch.float8_e8m0fnu], ids=str)
def test_layers_of_e4m3(of_scales: Any) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> tuple[Any, Any, Any]:
        """Values, the scales of their blocks, and what they stand for."""
        values = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
        rows = 128 if len(shape) == 3 else 1
        scales = torch.rand(*shape[:-2], shape[-2] // rows, shape[-1] // 128, generator=generator) / 8 + 0.1
        scales = scales.to(of_scales)
        factors = scales.double().repeat_interleave(128, -1).repeat_interleave(rows, -2)
        return values, scales, values.double() * factors

    x, w1, w2 = drawn(TOKENS, 256), drawn(EXPERTS, 256, 256), drawn(EXPERTS, 256, 128)
    weights = torch.rand(TOKENS, SLOTS, generator=generator)
    scales = {"x_scale": x[1], "w1_scale": w1[1], "w2_scale": w2[1]}
    found = gemmill.torch.moe(x[0], w1[0], w2[0], IDS, weights, **scales)
    wanted = plain(x[2], w1[2], w2[2], IDS, weights, activation="silu", b2=torch.zeros(EXPERTS, 256))
    assert found.dtype == torch.bfloat16
    assert (found.double() - wanted).norm() < 0.05 * wanted.norm(), "e4m3 rounds to about 0.025"
    arguments = (x[0], w1[0], w2[0], IDS, weights, None, *scales.values(), None, None, [], [])
    torch.library.opcheck(torch.ops.gemmill.moe.default, arguments, {}, test_utils="test_faketensor")
    other = torch.bfloat16 if of_scales == torch.float32 else torch.float32
    with pytest.raises(OperandError, match=r"w2_scale is \w+(; it must be| and x_scale is)"):
        gemmill.torch.moe(x[0], w1[0], w2[0], IDS, weights, **scales | {"w2_scale": w2[1].to(other)})
    weights.requires_grad_()
    with pytest.raises(OperandError, match=r"topk_weights requires a gradient, and a layer of .* has none"):
        gemmill.torch.moe(x[0], w1[0], w2[0], IDS, weights, **scales).sum().backward()


def narrow(rows: int, k: int, dtype: str, size: int) -> tuple[dict[str, Any], Any]:
    """Weights (experts, rows, K) in bytes, their scales and zero points by what they are, and what all stand for."""
    generator = torch.Generator().manual_seed(rows)
    groups = -(-k // size)
    scale = (torch.rand(EXPERTS, groups, rows, generator=generator) / 32).bfloat16()
    if dtype == "e2m1":
        blocks = torch.randint(0, 256, (EXPERTS, rows, k // 2), generator=generator, dtype=torch.uint8)
        exponents = torch.randint(118, 122, (EXPERTS, rows, groups), generator=generator, dtype=torch.uint8)
        weight, scales = gemmill.torch.mxfp4(blocks, exponents)
        numbers = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()
        wide = torch.tensor(VALUES)[numbers] * torch.exp2(exponents.float() - 127).repeat_interleave(size, 2)
        return {"": weight, "_scale": scales}, wide.bfloat16()
    if dtype == "s8":
        held = torch.randint(-128, 128, (EXPERTS, rows, k), generator=generator, dtype=torch.int8)
        wide = held.bfloat16() * scale.repeat_interleave(size, 1)[:, :k].mT
        return {"": held, "_scale": scale}, wide
    held = torch.randint(0, 256, (EXPERTS, rows, k // 2), generator=generator, dtype=torch.uint8)
    values = torch.stack((held & 15, held >> 4), -1).flatten(-2).bfloat16()
    if dtype == "s4":
        wide = (values - 16 * (values > 7)) * scale.repeat_interleave(size, 1)[:, :k].mT
        return {"": held, "_scale": scale}, wide
    zero = torch.randint(0, 16, scale.shape, generator=generator).bfloat16()
    shifted = values - zero.repeat_interleave(size, 1)[:, :k].mT
    return {"": held, "_scale": scale, "_zero": zero}, shifted * scale.repeat_interleave(size, 1)[:, :k].mT


@pytest.mark.parametrize(("dtype", "size"), [("u4", 128), ("u4", 32), ("s4", 64), ("s8", 128), ("e2m1", 32)])
def test_layers_of_narrow_weights(dtype: str, size: int) -> None:
    w1, wide1 = narrow(192, 192, dtype, size)
    w2, wide2 = narrow(192, 96, dtype, size)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, 192, generator=generator).bfloat16()
    weights, b2 = torch.rand(TOKENS, SLOTS, generator=generator), torch.randn(EXPERTS, 192, generator=generator)
    of_groups = {f"{name}{kind}": y for name, w in (("w1", w1), ("w2", w2)) for kind, y in w.items() if kind}
    keywords = {"activation": "silu", "b2": b2.bfloat16()}
    w_dtype = None if dtype == "s8" else dtype
    found = gemmill.torch.moe(x, w1[""], w2[""], IDS, weights, w_dtype=w_dtype, **of_groups, **keywords)
    wanted = plain(x, wide1, wide2, IDS, weights, activation="silu", b2=b2.bfloat16().double())
    assert (found.double() - wanted).norm() < 0.01 * wanted.norm()
    alike = gemmill.torch.moe(x, wide1, wide2, IDS, weights, **keywords)
    assert torch.equal(found, alike), "scales of groups are rounded as kernels round them"
    held = [of_groups.get(name) for name in ("w1_scale", "w2_scale", "w1_zero", "w2_zero")]
    arguments = (x, w1[""], w2[""], IDS, weights, None, None, *held, [], [])
    torch.library.opcheck(torch.ops.gemmill.moe.default, arguments, {"w_dtype": w_dtype}, test_utils="test_faketensor")

    def program(x: Any) -> Any:
        return gemmill.torch.moe(x, w1[""], w2[""], IDS, weights, w_dtype=w_dtype, **of_groups, **keywords) * 2

    assert torch.equal(torch.compile(program, fullgraph=True, backend="aot_eager")(x), program(x))
    weights.requires_grad_()
    with pytest.raises(OperandError, match=f"topk_weights requires a gradient, and a layer of {dtype} weights has"):
        gemmill.torch.moe(x, w1[""], w2[""], IDS, weights, w_dtype=w_dtype, **of_groups).sum().backward()


def test_e4m3_tokens_multiply_s4_weights() -> None:
    w1, _ = narrow(192, 256, "s4", 128)
    w2, wide2 = narrow(256, 96, "s4", 32)
    scale1 = w1["_scale"].float() * 1.01  # not a bf16 number
    numbers = torch.stack((w1[""] & 15, w1[""] >> 4), -1).flatten(-2).int()
    wide1 = (numbers - 16 * (numbers > 7)) * scale1.double().repeat_interleave(128, 1).mT
    generator = torch.Generator().manual_seed(0)
    x, x_scale = torch.randn(TOKENS, 256, generator=generator), torch.rand(TOKENS, 1, generator=generator)
    weights, held = torch.rand(TOKENS, SLOTS, generator=generator), x.to(torch.float8_e4m3fn)
    scales = {"x_scale": x_scale, "w1_scale": scale1, "w2_scale": w2["_scale"]}
    found = gemmill.torch.moe(held, w1[""], w2[""], IDS, weights, w_dtype="s4", **scales)
    tokens = held.double() * x_scale.double()
    wanted = plain(tokens, wide1, wide2, IDS, weights, activation="silu", b2=torch.zeros(EXPERTS, 256))
    assert found.dtype == torch.bfloat16
    assert (found.double() - wanted).norm() < 0.01 * wanted.norm()
    arguments = (held, w1[""], w2[""], IDS, weights, None, *scales.values(), None, None, [], [])
    torch.library.opcheck(torch.ops.gemmill.moe.default, arguments, {"w_dtype": "s4"}, test_utils="test_faketensor")
    for name in ("x_scale", "w1_scale"):
        with pytest.raises(OperandError, match=f"{name} is missing, and x is e4m3"):
            gemmill.torch.moe(held, w1[""], w2[""], IDS, weights, w_dtype="s4", **scales | {name: None})


def test_any_order_of_gate_and_up_can_be_interleaved() -> None:
    """Also that of packed weights, and of the scales of groups."""
    gate, up = (torch.arange(16)[None, :, None] + first for first in (0, 100))
    wanted = torch.cat([torch.cat((gate[:, i : i + 8], up[:, i : i + 8]), 1) for i in (0, 8)], 1)
    assert torch.equal(gemmill.interleaved(torch.cat((gate, up), 1)), wanted)
    assert torch.equal(gemmill.interleaved(torch.cat((gate, up), 1).mT, axis=2).mT, wanted)
    alternating = torch.stack((gate, up), 2).flatten(1, 2)
    assert torch.equal(gemmill.interleaved(alternating, alternate=True), wanted)
    assert torch.equal(gemmill.interleaved(alternating.mT, axis=2, alternate=True).mT, wanted)
    with pytest.raises(OperandError, match=r"gate_up has shape \(1, 32, 1\); extent 2 must be 2 F with F a multiple"):
        gemmill.interleaved(alternating, axis=2)


def test_a_compiled_program_is_one_graph() -> None:
    def program(*positional: Any, **keywords: Any) -> Any:
        return gemmill.torch.moe(*positional, **keywords) * 2

    positional, keywords = operands(BIASED)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*positional, **keywords), program(*positional, **keywords))


def test_padding_tokens_reach_no_gradient() -> None:
    """Token 3 has no expert, so what its row and its gradient hold does not matter."""
    positional, keywords = operands(BIASED)
    with torch.no_grad():
        positional[0][3] = float("nan")
    found = gemmill.torch.moe(*positional, **keywords)
    leaves = [x for x in (*positional, *keywords.values()) if getattr(x, "requires_grad", False)]
    g = torch.ones_like(found)
    g[3] = float("nan")
    assert found.isfinite().all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(found, leaves, g))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"out": torch.empty(TOKENS, HIDDEN)}, "unexpected argument 'out'; expected x, w1"),
        ({"bg": 1.0}, "bg is passed, but the epilogue"),
        ({"activation": BIASED, "s": None}, "bg is missing: the epilogue"),
        ({"activation": "d = silu(gate) * up + c"}, "reads c, which a layer of experts does not have"),
        ({"x_scale": torch.ones(TOKENS, 1)}, "x_scale is passed and x is f64"),
        ({"w1_zero": torch.ones(EXPERTS, 1, 1)}, "w1_zero is passed, and no weights are narrower than x"),
    ],
)
def test_operands_that_the_activation_does_not_have_are_refused(changed: dict[str, Any], says: str) -> None:
    positional, keywords = operands()
    with pytest.raises(OperandError, match=says):
        gemmill.torch.moe(*positional, **keywords | changed)


def test_gradients_need_the_operator() -> None:
    positional, keywords = operands(dtype=torch.bfloat16)
    for function in (gemmill.moe, gemmill.plan_moe):
        with pytest.raises(OperandError, match=r"call gemmill.torch.moe, or pass plain tensors under torch"):
            function(*positional, **keywords)


@pytest.mark.parametrize(
    ("place", "shape", "says"),
    [
        (0, (TOKENS,), "x, w1, w2 and topk_ids have"),
        (1, (EXPERTS, INNER, HIDDEN), "w1 has shape"),
        (2, (EXPERTS + 1, HIDDEN, INNER), "w1 has shape"),
        (4, (TOKENS, 1), "topk_weights has shape"),
        (4, (TOKENS,), "topk_weights has shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(place: int, shape: tuple[int, ...], says: str) -> None:
    positional, keywords = operands()
    positional[place] = torch.zeros(shape, dtype=torch.float64)
    with torch.device("meta"):
        fakes = [torch.empty_like(x, device="meta") for x in positional]
    with pytest.raises(RuntimeError, match=says):
        gemmill.torch.moe(*fakes, activation="silu", b2=None)
    with pytest.raises(RuntimeError, match=says):
        gemmill.torch.moe(*positional, **keywords)


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("w1", torch.float16, "w1 is f16; x, w1 and w2 must all be bf16"),
        ("topk_weights", torch.float64, "topk_weights is f64; it must be bf16, f16 or f32"),
        ("w2", None, "F is 4; for bf16 it must be a multiple of 8"),
    ],
)
def test_what_a_gpu_refuses_is_refused(name: str, changed: Any, says: str) -> None:
    positional, keywords = operands("d = tanh(acc)", torch.bfloat16)
    given = dict(zip(("x", "w1", "w2", "topk_ids", "topk_weights"), positional, strict=True))
    given |= {name: given[name].to(changed)} if changed else {"w1": given["w1"][:, :4], "w2": given["w2"][:, :, :4]}
    with torch.no_grad(), pytest.raises(OperandError, match=says):
        gemmill.torch.moe(**given, **keywords)


@pytest.mark.parametrize(
    ("activation", "says"),
    [
        ("d = round(gate) * up", "round is not differentiable"),
        ("aux[m, n] = gate; d = gate * up", "writes aux, and gemmill::moe returns only its result"),
    ],
)
def test_activations_without_a_gradient_are_refused(activation: str, says: str) -> None:
    positional, _ = operands()
    with pytest.raises(OperandError, match=says):
        gemmill.torch.moe(*positional, activation=activation).sum().backward()
