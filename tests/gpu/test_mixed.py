"""Mixed input: narrow weights upconverted in registers, in groups that share scales and zero points.

``make_weights`` emulates the kernels' arithmetic step by step, so that what they multiply by is known exactly.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import kernel, torch
from tests.gpu.weights import check, depth, integers, make_weights

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.e2m1 import SCALES, VALUES, in_fragment_order
from gemmill.library.epilogues.evaluation import Bounded, evaluate
from gemmill.library.epilogues.parse import parse
from gemmill.library.epilogues.tree import sums_by_name
from gemmill.library.errors import OperandError
from gemmill.profiler.measure.operands import make_operands, plan_options, torch_dtype
from gemmill.profiler.measure.verify import reference
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.units import problem_of
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

BF16: dict[str, Any] = {"b__dtype": "bf16", "d__dtype": "bf16", "d__major": "m"}
F16: dict[str, Any] = {"b__dtype": "f16", "d__dtype": "f16", "d__major": "m"}

E2M1: dict[str, Any] = {"a__dtype": "e2m1", "a__scale": "1x32e8"}
SPLIT: dict[str, Any] = {"scheduler__decomposition": "splitk"}
E4M3: dict[str, Any] = {
    "a__dtype": "s4",
    "a__scale": "1x128",
    "b__dtype": "e4m3",
    "promote": 4,
    "d__dtype": "bf16",
    "d__major": "m",
}
"""s4 beside e4m3: scales multiply the sums of each stage."""

CONFIGS: tuple[GemmConfig, ...] = (
    # Every narrow type to both wide ones, without scales.
    kernel("128x16x64", a__dtype="s8", **BF16),
    kernel("64x32x128", a__dtype="s8", **F16),
    kernel("128x48x128", a__dtype="u8", **F16),
    kernel("64x16x64", "cooperative", "2x1", a__dtype="u8", **BF16),
    kernel("128x256x64", "cooperative", "2x1", a__dtype="e4m3", **BF16),
    kernel("64x64x64", "pingpong", a__dtype="e4m3", **F16),
    kernel("128x16x128", a__dtype="s4", **F16),
    kernel("64x16x128", a__dtype="u4", **BF16),
    # Groups of every size, with and without zero points; tiles of every M; both depths; multicast of A and of B.
    kernel("128x16x128", a__dtype="u4", a__scale="1x128z", **BF16),
    kernel("64x16x128", "cooperative", "2x1", a__dtype="u4", a__scale="1x32z", **F16),
    kernel("64x64x128", "cooperative", "1x2", a__dtype="u4", a__scale="1x64z", **BF16),
    kernel("64x16x256", a__dtype="u4", a__scale="1x128z", **BF16),
    kernel("64x32x256", "cooperative", "2x1", a__dtype="s4", a__scale="1x32", **F16),
    kernel("64x16x128", a__dtype="u4", a__scale="1x64", **BF16),
    kernel("128x256x64", "cooperative", "2x1", a__dtype="s4", a__scale="1x64", **BF16),
    kernel("128x128x128", "cooperative", "1x2", a__dtype="s4", a__scale="1x128", **F16),
    kernel("64x128x64", "pingpong", a__dtype="s4", a__scale="1x32", **F16),
    kernel("128x64x64", "pingpong", "1x2", a__dtype="u4", a__scale="1x128", **BF16),
    kernel("256x64x64", a__dtype="s8", a__scale="1x128", **BF16),
    kernel("192x64x64", "cooperative", "2x2", a__dtype="e4m3", a__scale="1x64z", **BF16),
    kernel("64x32x128", a__dtype="e4m3", a__scale="1x128", **F16),
    # MXFP4: both depths and types, tiles of every kind.
    kernel("64x16x128", **E2M1, **BF16),
    kernel("64x32x256", "cooperative", "2x1", **E2M1, **F16),
    kernel("64x64x128", "cooperative", "1x2", **E2M1, **BF16),
    kernel("128x128x128", "cooperative", "2x1", **E2M1, **BF16),
    kernel("128x256x64", "cooperative", "2x1", **E2M1, **F16),
    kernel("64x128x64", "pingpong", **E2M1, **BF16),
    kernel("64x16x128", **E2M1, **SPLIT, **BF16),
    kernel("128x64x64", b__major="mn", c__dtype="bf16", c__major="m", **E2M1, **BF16),
    kernel("64x8x128", **E4M3),
    kernel("64x16x128", "cooperative", "2x1", **E4M3),
    kernel("128x128x128", **E4M3),
    kernel("128x64x128", "cooperative", "2x1", **(E4M3 | {"d__dtype": "f16"})),
    kernel("128x32x128", "cooperative", "1x2", c__dtype="bf16", c__major="m", **E4M3),
    kernel("64x128x128", "pingpong", **(E4M3 | {"d__dtype": "f32", "d__major": "n"})),
    kernel("64x16x128", **SPLIT, **E4M3),
    # Activations that are not K-major; D in other formats; C.
    kernel("128x64x64", a__dtype="u4", a__scale="1x128z", b__major="mn", **BF16),
    kernel("64x32x128", a__dtype="s8", b__major="mn", **(BF16 | {"d__major": "n"})),
    kernel("64x128x64", "pingpong", a__dtype="s8", **(F16 | {"d__dtype": "f32", "d__major": "n"})),
    kernel("128x32x64", a__dtype="u4", a__scale="1x64z", c__dtype="bf16", c__major="m", **BF16),
    kernel("64x16x128", a__dtype="u4", a__scale="1x128z", c__dtype="f32", c__major="m", **BF16),
    # Slices of K, which need not end with a group.
    kernel("64x16x128", a__dtype="u4", a__scale="1x128z", **SPLIT, **BF16),
    kernel("128x32x64", a__dtype="s4", a__scale="1x128", c__dtype="f16", c__major="m", **SPLIT, **F16),
    kernel("64x64x64", "pingpong", a__dtype="e4m3", **SPLIT, **BF16),
    kernel("64x16x128", "cooperative", "2x1", a__dtype="s8", **SPLIT, **F16),
    # Values up to 57,344.
    kernel("64x32x128", a__dtype="e5m2", **BF16),
    kernel("128x64x64", "pingpong", a__dtype="e5m2", **(F16 | {"d__dtype": "f32"})),  # its sums are beyond f16
    kernel("192x64x64", "cooperative", "2x2", a__dtype="e5m2", a__scale="1x64z", **BF16),
    # Four warpgroups of 64 rows each; many columns; zero points of signed integers.
    kernel("256x8x128", a__dtype="u4", a__scale="1x128z", **BF16),
    kernel("256x16x128", **E2M1, **BF16),
    kernel("256x32x128", "cooperative", "2x1", a__dtype="s4", a__scale="1x32", **F16),
    kernel("256x16x128", "cooperative", "1x2", a__dtype="u4", a__scale="1x32z", **BF16),
    kernel("256x16x128", a__dtype="s8", **BF16),
    kernel("256x8x128", a__dtype="u4", a__scale="1x64", **SPLIT, **BF16),
    kernel("128x192x64", **E2M1, **BF16),
    kernel("128x256x64", a__dtype="u4", a__scale="1x32z", **BF16),
    kernel("64x16x128", a__dtype="s4", a__scale="1x64z", **BF16),
)


@pytest.fixture(scope="module", autouse=True)
def compiled(registry: Registry) -> None:
    registry.warm(CONFIGS)


SHAPES = [(1, 129, 160), (17, 200, 327), (33, 264, 1000), (130, 520, 2184), (16, 70, 136), (300, 1000, 129)]
"""Activation rows, weight rows, K: odd, and ending within a group."""


@pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)
def test_exact_sums(config: GemmConfig, registry: Registry) -> None:
    for index, shape in enumerate(SHAPES):
        check(config, *shape, registry, exact=True, seed=index)
    # More tiles than the GPU holds, so that blocks come round to a second one.
    check(config, config.tile.n * 12 - 3, config.tile.m * 13 - 1, 200, registry, exact=True)


@pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)
def test_normal_data_within_the_bound(config: GemmConfig, registry: Registry) -> None:
    for index, shape in enumerate(SHAPES[1:4]):
        check(config, *shape, registry, exact=False, seed=index)
        check(config, *shape, registry, exact=False, swapped=False, seed=index)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.c is None], ids=kernel_name)
def test_every_weight_is_widened_to_the_bit(config: GemmConfig, registry: Registry) -> None:
    """Activations of ones in turn: D is the upconverted weights."""
    n, k = 200, depth(config, 400)
    weights = make_weights(config, n, k, exact=False, seed=5)
    eye = torch.eye(k, device="cuda").to(torch_dtype(config.b.dtype))
    out = torch.full((k, n), float("nan"), device="cuda", dtype=torch_dtype(config.d.dtype))
    out = out if config.d.major == "m" else torch.full((n, k), float("nan"), device="cuda", dtype=out.dtype).T
    gemmill.matmul(
        eye if config.b.major == "k" else eye.T.contiguous().T,
        weights.packed.tensor.T,
        out=out,
        registry=registry,
        kernel=config,
        **weights.arguments("b"),
    )
    assert torch.equal(out, weights.values.T.to(out.dtype))


def e2m1_values(config: GemmConfig, scales: Any, factor: float, registry: Registry) -> tuple[Any, Any]:
    """Every number times every scale (bytes), from a kernel, and in float64. ``factor`` is that of activations."""
    k = 256  # every number in every place of the 32
    codes = (torch.arange(k, device="cuda") * 7 + torch.arange(k, device="cuda") // 32).expand(len(scales), k) % 16
    packed = in_fragment_order(codes.int(), torch).byte()
    scale = torch.zeros(k // 32, -(-len(scales) // 16) * 16, dtype=torch.uint8, device="cuda")[:, : len(scales)]
    scale.copy_(scales.expand(k // 32, -1))
    wide = torch_dtype(config.b.dtype)
    a = torch.eye(k, device="cuda", dtype=wide) * factor
    options = {"b_dtype": "e2m1", "b_scale": scale.view(torch.float8_e8m0fnu)}
    found = gemmill.matmul(a, packed.T, registry=registry, kernel=config, **options)
    values = torch.tensor(VALUES, dtype=torch.float64, device="cuda")[codes]
    powers = scales.byte().view(torch.float8_e8m0fnu).float().double()  # 2.0 ** x is not exact on GPUs
    return found.T.double() / factor, values * powers[:, None]


E2M1_CONFIGS = [c for c in CONFIGS if c.a.dtype == "e2m1" and c.c is None]


@pytest.mark.parametrize("config", E2M1_CONFIGS, ids=kernel_name)
def test_all_numbers_times_all_scales_are_exact(config: GemmConfig, registry: Registry) -> None:
    least, greatest = SCALES[config.b.dtype]
    scales = torch.arange(least, greatest + 1, device="cuda")
    # bf16 values down to 2^-128 are subnormal; larger activations keep the sums normal.
    found, wanted = e2m1_values(config, scales, 2.0**64 if config.b.dtype == "bf16" else 1.0, registry)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("config", E2M1_CONFIGS[:2], ids=kernel_name)
def test_scales_out_of_range_are_never_silent(config: GemmConfig, registry: Registry) -> None:
    """Greater ones give infinity or NaN; in f16, smaller ones round."""
    least, greatest = SCALES[config.b.dtype]
    found, wanted = e2m1_values(config, torch.arange(greatest + 1, 256, device="cuda"), 1.0, registry)
    assert not found[wanted != 0].isfinite().any()
    if least:
        found, wanted = e2m1_values(config, torch.arange(least, device="cuda"), 1.0, registry)
        assert torch.equal(found, wanted.half().double())


@pytest.mark.parametrize(("dtype", "one"), [("e4m3", 0x38), ("e5m2", 0x3C)])
def test_nan_weights_reach_their_column(dtype: str, one: int, registry: Registry) -> None:
    config = next(c for c in CONFIGS if c.a.dtype == dtype)
    weights = torch.full((104, 128), one, dtype=torch.uint8, device="cuda")
    weights[41, 77] = 0x7F
    a = torch.ones(20, 128, device="cuda", dtype=torch.bfloat16)
    d = gemmill.matmul(a, weights.view(torch_dtype(dtype)).T, registry=registry, kernel=config)
    assert d[:, 41].isnan().all()
    assert (d.isnan().sum(), (d == 128).sum()) == (20, 103 * 20)


IN_TURN = [
    kernel("64x16x128", stages=4, **E2M1, **BF16),
    kernel("64x16x128", "cooperative", "2x1", stages=8, **E2M1, **F16),
    kernel("64x16x256", "cooperative", "2x1", **E2M1, **BF16),
    kernel("64x32x256", "cooperative", "1x2", a__dtype="u4", a__scale="1x32z", **BF16),
    kernel("64x64x128", a__dtype="s4", a__scale="1x128", **F16),
    kernel("64x16x64", stages=4, a__dtype="s8", **BF16),
    kernel("64x16x128", a__dtype="u4", a__scale="1x128", **SPLIT, **BF16),
    kernel("64x16x128", stages=4, **E4M3),
]


@pytest.mark.parametrize("config", IN_TURN, ids=kernel_name)
def test_warpgroups_that_take_stages_in_turn(config: GemmConfig, registry: Registry) -> None:
    """Fewer stages of a tile than warpgroups, laps of the ring that no tile begins with, and many tiles."""
    for stages in (1, 2, 3, 4, 5, 7, 9, 23, 33):
        k = stages * config.tile.k - config.tile.k // 2
        check(config, 2 * config.tile.n + 1, 64 * 290 + 5, k, registry, exact=True, seed=stages)


@pytest.mark.parametrize("k", [1, 2, 31, 32, 64, 100])
def test_one_group(k: int, registry: Registry) -> None:
    check(CONFIGS[8], 19, 70, k, registry, exact=True)


def test_batches_and_no_k(registry: Registry) -> None:
    config = CONFIGS[8]
    packed, scale = integers(0, 255, (3, 192, 64), 1).byte(), torch.rand(3, 1, 192, device="cuda").bfloat16()
    zero = integers(0, 15, (3, 1, 192), 2).bfloat16()
    a = integers(-2, 2, (3, 24, 128), 3).bfloat16()
    out = gemmill.matmul(a, packed.mT, b_dtype="u4", b_scale=scale, b_zero=zero, registry=registry, kernel=config)
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(3, 192, 128).float()
    wanted = a.double() @ ((nibbles - zero.mT) * scale.mT.float()).bfloat16().mT.double()
    assert ((out.double() - wanted).abs() <= 2.0**-8 * wanted.abs() + 2.0**-12).all()
    # One matrix of weights for a batch of activations.
    shared = gemmill.matmul(
        a, packed[0].T, b_dtype="u4", b_scale=scale[0], b_zero=zero[0], registry=registry, kernel=config
    )
    assert torch.equal(shared[0], out[0])
    none = torch.empty(24, 0, device="cuda", dtype=torch.bfloat16)
    empty = gemmill.matmul(none, packed[0, :, :0].T, b_dtype="u4", b_scale=scale[0, :0], b_zero=zero[0, :0])
    assert (empty == 0).all()


def test_selected_kernels_and_a_rebound_plan() -> None:
    packed, scale = integers(0, 255, (512, 256), 1).byte(), torch.rand(4, 512, device="cuda").bfloat16()
    for m in (1, 16, 100, 700):
        a = torch.randn(m, 512, device="cuda").bfloat16()
        options = {"b_dtype": "u4", "b_scale": scale, "b_zero": torch.full_like(scale, 8)}
        out = gemmill.matmul(a, packed.T, **options)
        nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(512, 512).float() - 8
        values = (nibbles * scale.T.repeat_interleave(128, dim=1)).bfloat16().double()
        wanted = a.double() @ values.T
        bound = 2.0**-8 * wanted.abs() + 2.0**-14 * (a.double().abs() @ values.abs().T)
        assert ((out.double() - wanted).abs() <= bound).all()
        with gemmill.plan(torch.zeros_like(a), packed.T, **options) as launch:
            launch.rebind(a=a, b=packed.clone().T, b_scale=scale.clone())
            launch()
            assert torch.equal(launch.out, out)
        s8 = packed.view(torch.int8)[:, :256]
        plain = gemmill.matmul(a[:, :256], s8.T)
        wanted = a[:, :256].double() @ s8.double().T
        bound = 2.0**-8 * wanted.abs() + 2.0**-14 * (a[:, :256].double().abs() @ s8.double().abs().T)
        assert ((plain.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("m", [1, 16, 100, 700])
def test_s4_beside_e4m3_with_scales_of_rows(m: int) -> None:
    packed, scale = integers(0, 255, (512, 256), 1).byte(), torch.rand(4, 512, device="cuda")
    a, of_rows = torch.randn(m, 512, device="cuda").to(torch.float8_e4m3fn), torch.rand(m, 1, device="cuda")
    options = {"b_dtype": "s4", "a_scale": of_rows, "b_scale": scale}
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(512, 512).int()
    values = (nibbles - 16 * (nibbles > 7)) * scale.T.double().repeat_interleave(128, dim=1)
    sums, lost = a.double() @ values.T, 2.0**-10 * (a.double().abs() @ values.abs().T)
    wanted, bound = sums * of_rows, lost * of_rows
    for bits in ("any", "invariant"):
        out = gemmill.matmul(a, packed.T, bits=bits, **options)
        assert out.dtype == torch.bfloat16
        assert ((out.double() - wanted).abs() <= 2.0**-8 * wanted.abs() + bound).all()
    assert torch.equal(out[:1], gemmill.matmul(a[:1], packed.T, bits="invariant", **options | {"a_scale": of_rows[:1]}))
    text = "d = silu(gate8) * up8"
    gated, epilogue = gemmill.matmul(a, packed.T, epilogue=text, **options), parse(text)
    errors = sums_by_name(epilogue, bound)
    inputs = {name: Bounded(x, errors[name]) for name, x in sums_by_name(epilogue, wanted).items()}
    product = evaluate(epilogue, inputs, torch, "bf16")["d"]
    largest = product.value.abs() + product.error
    assert ((gated.double() - product.value).abs() <= product.error + 2.0**-8 * largest).all()


GATES = {
    "silu": "d = silu(gate8) * up8",
    "gpt-oss": "g = min(gate8 + bg[n], limit); u = clamp(up8 + bu[n], -limit, limit); "
    "d = (u + 1) * g * sigmoid(1.702 * g)",
}


@pytest.mark.parametrize("m", [1, 7, 16, 100, 700])
@pytest.mark.parametrize("text", GATES.values(), ids=[*GATES])
@pytest.mark.parametrize("dtype", ["u4", "s4", "s8"])
def test_gates_of_narrow_weights(dtype: str, text: str, m: int, registry: Registry) -> None:
    config = kernel("64x16x128", a__dtype=dtype, **({} if dtype == "s8" else {"a__scale": "1x64"}), **BF16)
    weights = make_weights(config, 416, 512, exact=False, seed=m)
    a = torch.randn(m, 512, device="cuda").bfloat16()
    if dtype == "s8":
        a *= 2.0**-6
    vectors = {x: torch.randn(208, device="cuda").bfloat16() for x in ("bg", "bu")}
    operands: dict[str, Any] = {**vectors, "limit": 7.0} if "limit" in text else {}
    b, of_b = weights.packed.tensor.contiguous(), weights.arguments("b")
    scale = {"b_scale": of_b["b_scale"].contiguous()} if "b_scale" in of_b else {}
    out = gemmill.matmul(a, b.T, epilogue=text, **(of_b | scale), **operands)
    sums = a.double() @ weights.values.double().T
    lost = 2.0**-14 * (a.double().abs() @ weights.values.double().abs().T)
    epilogue = parse(text)
    errors = sums_by_name(epilogue, lost)
    inputs: dict[str, Any] = {name: Bounded(x, errors[name]) for name, x in sums_by_name(epilogue, sums).items()}
    like = torch.zeros(m, 208, device="cuda", dtype=torch.float64)
    inputs |= {name: like + x for name, x in operands.items()}
    wanted = evaluate(epilogue, inputs, torch, "bf16")["d"]
    assert ((out.double() - wanted.value).abs() <= wanted.error + 2.0**-8 * (wanted.value.abs() + wanted.error)).all()
    others = {name: x.roll(16, -1) for name, x in scale.items()}
    with gemmill.plan(a, b.roll(16, 0).T, epilogue=text, **(of_b | others), **operands) as launch:
        launch()
        assert not torch.equal(launch.out, out)
        launch.rebind(b=b.T, **scale)
        launch()
        assert torch.equal(launch.out, out)


def test_rebound_scales_must_be_aligned() -> None:
    a = torch.zeros(16, 256, device="cuda", dtype=torch.bfloat16)
    packed = torch.zeros(64, 128, device="cuda", dtype=torch.uint8)
    scale = torch.zeros(2, 64, device="cuda", dtype=torch.bfloat16)
    shifted = torch.zeros(129, device="cuda", dtype=torch.bfloat16)[1:].view(2, 64)
    with gemmill.plan(a, packed.T, b_dtype="u4", b_scale=scale, b_zero=scale.clone()) as launch:
        for name in ("b_scale", "b_zero"):
            with pytest.raises(OperandError, match=f"^{name}: its first element is at .* a multiple of 16 bytes"):
                launch.rebind(**{name: shifted})


@pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)
def test_what_the_profiler_measures_is_verified(config: GemmConfig, registry: Registry) -> None:
    problem = problem_of(config, Shape(40, 264, 416))
    (operands,) = make_operands(problem, 0, sets=1)
    options = (
        plan_options(problem, operands) | {"c": operands.c, "beta": 0.5}
        if config.c
        else plan_options(problem, operands)
    )
    with gemmill.plan(operands.a, operands.b, out=operands.d, registry=registry, kernel=config, **options) as launch:
        assert (launch.problem.m, launch.problem.n) == (264, 40)
        launch()
    torch.cuda.synchronize()
    found = reference(problem, operands, 1.0, 0.5 if config.c else 0.0).compare(operands.d)
    assert found.passed, found.says


def test_bad_calls_are_refused_by_name() -> None:
    a = torch.zeros(16, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.zeros(64, 128, device="cuda", dtype=torch.uint8)
    scale = torch.zeros(2, 64, device="cuda", dtype=torch.bfloat16)
    good = {"b": b.T, "b_dtype": "u4", "b_scale": scale}
    cases: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
        "not packed along K": ({"b": torch.zeros(128, 64, device="cuda").byte()}, OperandError, "must be contiguous"),
        "wide": ({"b": b.T.bfloat16()}, OperandError, "to read it as u4 it must be a tensor of bytes"),
        "K": ({"b": b[:, :96].T}, OperandError, "b has K = 192 rows"),
        "groups": ({"b_scale": scale.repeat(2, 1)[:3]}, OperandError, r"must be \(2, 64\) or \(4, 64\) or \(8, 64\)"),
        "columns": ({"b_scale": scale[:, :32]}, OperandError, r"b_scale has shape \(2, 32\)"),
        "dtype": ({"b_scale": scale.half()}, OperandError, "b_scale is f16 .* must be bf16"),
        "zero alone": ({"b_scale": None, "b_zero": scale}, OperandError, "without b_scale"),
        "zero shape": ({"b_zero": scale[:1]}, OperandError, "b_zero is bf16"),
        "strides": ({"b_scale": scale.T.contiguous().T}, OperandError, "must be contiguous along N"),
        "wide operand": ({"a_scale": scale}, OperandError, "the wider operand; only b can have a scale"),
        "batch": (
            {"b": b.T.expand(2, 128, 64).contiguous(), "b_dtype": "e4m3", "a": a[:, :128]},
            OperandError,
            "both must be shared by the batch, or neither",
        ),
        "no scale of e2m1": (
            {"b_dtype": "e2m1", "b_scale": None},
            OperandError,
            "b is e2m1, and b_scale is missing",
        ),
        "e2m1 with scales of bf16": (
            {"b_dtype": "e2m1", "b_scale": scale.repeat(4, 1)},
            OperandError,
            r"b_scale is bf16 .* must be ue8m0 \(8, 64\): pass b_scale.view\(torch.float8_e8m0fnu\)",
        ),
        "unscaled zero": (
            {"b": a.T, "b_dtype": None, "b_scale": None, "b_zero": scale},
            OperandError,
            "zero points need one operand narrower",
        ),
    }
    for name, (changes, error, says) in cases.items():
        with pytest.raises(error, match=says):
            gemmill.matmul(**({"a": a} | good | changes))
        assert (gemmill.matmul(a, **good) == 0).all(), f"unusable after {name}"
