"""Epilogue expressions: each element of D and of every output against float64, in bounds that follow each operation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from tests.cases.kernels import DIRECT, configs
from tests.cases.operand_types import OF_EVERY_TYPE
from tests.gpu.harness import Guarded, fill, guarded, kernel

import gemmill
import gemmill.torch
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.evaluation import Bounded, evaluate
from gemmill.library.epilogues.function_table import FUNCTIONS, rounded
from gemmill.library.epilogues.parse import canonical, parse
from gemmill.library.epilogues.tree import BLOCK, Epilogue, fault_of_n, sums_by_name
from gemmill.library.errors import OperandError
from gemmill.library.legality.rules import legal
from gemmill.runtime.registry import Registry

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

TILES: tuple[dict[str, str], ...] = (
    {"tile": "128x128x64"},
    {"tile": "128x256x64", "cluster": "2x1"},
    {"tile": "128x128x64", "schedule": "pingpong"},
    {"tile": "64x112x64", "schedule": "pingpong"},
    {"tile": "192x96x64"},
)
EPILOGUES: tuple[str, ...] = (
    "d = silu(alpha * acc * scale_a[m] * scale_b[n] + beta * c + bias.bf16[n])",
    "t = acc * s + bias[n]; aux.bf16[m, n] = t; d = gelu(t)",
    "d = where(acc * k1 > 1 and not bias[n] < 0, min(acc, 40), acc - r.bf16[m, n]); aux.f16 = sb[batch] * acc",
    "d = gelu_tanh(acc / 8) + tanh(x.f16[m]) * sigmoid(bias[n]); amax = max(abs(d)); low[batch] = min(acc)",
    "d = clamp(acc, -s, s) / (1 + exp(-abs(bias[n]))); per_row[m] = sum(d); top[n] = max(d)",
    "d = erf(acc * 0.1) * sqrt(abs(x[m]) + 1) - rsqrt(1 + x[m] * x[m]) + log(1.5 + relu(bias[n])); cols[n] = sum(d)",
    "d = bf16(acc) + f16(bias[n]) + e4m3(bias[n] * 3) + e5m2(x[m]) + s8(acc * 9) + u8(round(acc)) - max(acc, s, 1)",
    "d = silu(gate) * up",
    "d = silu(gate * ga[m] + bg[n]) * (up + bu[n]) + beta * c; amax = max(abs(d)); aux[m, n] = up",
    "d = relu(gate) + r[m, n]; per_row[m] = max(up); cols[n] = sum(gate)",
)
SHAPES = ((256, 256, 128), (200, 176, 72), (37, 70, 40))


def config_of(epilogue: str, tile: dict[str, str], **fields: Any) -> GemmConfig:
    text = canonical(epilogue)
    if parse(text).reads_c:
        fields.setdefault("c__dtype", "bf16")
    return kernel(**tile, epilogue=text, **fields)


def members() -> Iterator[GemmConfig]:
    """Every epilogue with every kind of tile, majors and types of D taken in turn."""
    for index, (epilogue, tile) in enumerate(product(EPILOGUES, TILES)):
        fields = ({}, {"d__dtype": "f32"}, {"d__major": "m"}, {"d__dtype": "f16", "a__major": "mn"})[index % 4]
        if fields.get("d__dtype") == "f16":
            fields = {**fields, "c__dtype": "f32"} if parse(canonical(epilogue)).reads_c else fields
        elif "d__dtype" in fields and parse(canonical(epilogue)).reads_c:
            fields = {**fields, "c__dtype": "f32"}
        config = config_of(epilogue, tile, **fields)
        if legal(config):
            yield config


NARROW = tuple(
    kernel(tile, "pingpong", d__major=major, d__dtype=d, epilogue=canonical(epilogue))
    for tile, major, d, epilogue in (
        ("64x152x64", "m", "bf16", "d = gelu(acc * row[m] + bias[n])"),
        ("64x208x64", "m", "bf16", "d = silu(gate + bg[n]) * up"),
        ("64x176x64", "n", "f32", "d = acc * row[m] + bias[n]"),
        ("64x152x64", "m", "bf16", "d = acc + bias[n]; per_row[m] = sum(d)"),
    )
)
"""Tiles that few columns divide: what is neither read nor counted is computed and written twice, as the first three."""

EIGHT_BITS = tuple(
    kernel(ab=ab, accumulator=accumulator, d__dtype=d, tile="128x128x64", epilogue=canonical(epilogue))
    for ab, accumulator, d, epilogue in (
        ("e4m3", "f32", "bf16", "d = acc * row[m] * column[n]"),
        ("e4m3", "f32", "e4m3", "t = gelu(acc * 0.1 + bias[n]); amax = max(abs(t)); d = t * s"),
        ("e4m3", "f32", "e5m2", "d = silu(gate) * up"),
        ("s8", "s32", "s8", "d = acc * row[m] * column[n] + bias[n]"),
        ("s8", "s32", "bf16", "d = relu(acc * 0.01 + bias.bf16[n]); aux.f16 = acc"),
    )
)
"""Operands and D of 8 bits: D is rounded to the nearest and saturated."""


_GPT_OSS = (
    "g = min(gate8 + bg[n], limit); u = clamp(up8 + bu[n], -limit, limit); h = (u + 1) * g * sigmoid(1.702 * g); "
    "amax = max(abs(h)); aux.bf16 = h; s[m, n/128] = scale(h); d = h / s"
)
GATES_AND_SCALES = tuple(
    config
    for tile in (
        {"tile": "128x128x64"},
        {"tile": "128x256x64", "cluster": "2x1"},
        {"tile": "64x256x64", "schedule": "pingpong"},
    )
    for epilogue, d in (
        ("d = silu(gate8 * ga[m] + bg[n]) * (up8 + bu[n]) + beta * c; amax = max(abs(d)); aux[m, n] = up8", "bf16"),
        ("d = gelu(gate8) * up8 + r.bf16.n[m, n]; aux.bf16.n = gate8; top[n] = max(up8)", "bf16"),
        ("h = acc * row[m] + bias[n]; s[m, n/128] = scale(h); d = h / s", "e4m3"),
        ("h = silu(gate) * up; s.ue8m0[m, n/128] = scale(h); d = h / s * 0.5", "e4m3"),
        (_GPT_OSS, "e4m3"),
    )
    if legal(config := config_of(epilogue, tile, d__dtype=d))
)
"""Gates of runs of eight columns, and D in e4m3 divided by the scales of blocks."""
GATES_OF_ROWS = tuple(
    config
    for tile in (
        {"tile": "128x128x64"},
        {"tile": "128x192x64", "cluster": "2x1"},
        {"tile": "64x64x64", "schedule": "pingpong"},
        {"tile": "128x8x64"},
        {"tile": "256x40x64", "cluster": "1x2"},
    )
    for epilogue, d in (
        ("d = silu(gate8.m * ga[m] + bg[n]) * (up8.m + bu[m]) + beta * c; amax = max(abs(d)); aux[m, n] = up8.m", {}),
        ("d = gelu(gate8.m) * up8.m + r.bf16.n[m, n]; aux.bf16.m = gate8.m; top[n] = max(up8.m)", {"d__major": "m"}),
        ("d = silu(gate8.m) * up8.m; t[m] = sum(up8.m)", {"d__dtype": "f32", "d__major": "m"}),
        ("d = gate8.m * 0.1 + up8.m", {"d__dtype": "e4m3", "d__major": "m"}),
    )
    if legal(config := config_of(epilogue, tile, **{"d__dtype": "bf16", **d}))
)
"""Gates of runs of eight rows: D has half of the rows of the sums."""
OF_EXPERTS = tuple(
    kernel(epilogue=canonical(epilogue), scheduler__batching=batching, **tile, **fields)
    for batching in ("strided", "grouped", "masked")
    for depth, epilogue, fields in (
        (64, "d = silu(gate8) * up8", {}),
        (64, "h = silu(gate8) * up8; s.ue8m0[m, n/128] = scale(h); d = h / s", {"d__dtype": "e4m3"}),
        (
            *(128, "h = silu(gate8) * up8; s[m, n/128] = scale(h); d = h / s"),
            {"ab": "e4m3", "promote": 4, "a__scale": "1x128", "b__scale": "128x128", "d__dtype": "e4m3"},
        ),
    )
    for tile in (
        {"tile": f"128x256x{depth}", "cluster": "1x2"},
        {"tile": f"64x256x{depth}", "schedule": "pingpong", "cluster": "2x1"},
    )
)
"""The first product of expert layers: in bf16; from bf16 to e4m3; from scales of blocks of A to those of D."""


PARTS = tuple(
    kernel(epilogue=canonical(epilogue), scheduler__decomposition=decomposition, scheduler__splits=splits, **fields)
    for decomposition, splits in (("splitk", 1), ("stream", 1), ("cluster", 2), ("cluster", 4))
    for epilogue, fields in (
        ("d = silu(acc * row[m] + bias.bf16[n]) + r[m, n]; amax = max(abs(d)); per_row[m] = sum(d); aux = acc", {}),
        ("d = gelu(acc + s) + beta * c", {"c__dtype": "bf16", "d__major": "m"}),
        *((f"d = silu(gate{x}) * up{x}", {}) for x in ("", "8") if decomposition != "splitk"),
    )
)
"""Epilogues after the slices of K have been added up."""


MATRICES = tuple(
    config
    for tile in TILES
    for epilogue, fields in (
        ("d = acc + r.bf16.n[m, n]", {}),
        ("aux.bf16.n = acc * 0.5; d = relu(acc)", {}),
        ("d = acc * r.n[m, n] + s.f16.m[m, n] + x[m]; aux.f16.n = acc + bias[n]", {"d__major": "m"}),
        ("d = silu(gate) * up + r.bf16.n[m, n]; aux.bf16.n = gate; other.m = up", {}),
        (
            "d = acc + beta * c + r.bf16.n[m, n] * t[m, n]; aux.n = acc; top[m] = max(acc); other = acc",
            {"d__dtype": "f32", "c__dtype": "f32"},
        ),
    )
    if legal(config := config_of(epilogue, tile, **fields))
)
"""Matrices that pass through shared memory, alone, beside others at any strides, and beside C."""
MATRIX_PARTS = tuple(
    kernel(epilogue=canonical(epilogue), scheduler__decomposition=decomposition, scheduler__splits=splits)
    for decomposition, splits in (("stream", 1), ("cluster", 4))
    for epilogue in ("d = acc + r.bf16.n[m, n]; aux.bf16.n = acc",)
)
GEMV = (
    "sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x1024_1x1_gemv_s4_m1_k1_linear",
    "sm90a_f16k16_f16k16_f32_f32any4_f32any4_8x32x128_1x1_gemv_s2_m1_k1_linear",
    "sm90a_f16any2_f16mn16_f32_none_f16any2_8x128x64_1x1_gemv_s4_m1_k1_linear",
)


def without_tma() -> Iterator[GemmConfig]:
    """Expressions in the families that read and write through plain addresses."""
    for config in (*configs(DIRECT), *map(parse_name, GEMV)):
        text = (
            "d = gelu(acc * 0.125 + beta * c) * row[m] + r[m, n]; per_row[m] = sum(d); aux = acc"
            if config.c
            else "d = silu(alpha * acc * row[m] * x[n] + bias.bf16[n]) + r[m, n]; aux.bf16 = acc; amax = max(abs(d))"
        )
        config = replace(config, epilogue=canonical(text))
        if config.a.dtype != "tf32" and legal(config):
            yield config


OF_SOME = ("exp", "log", "sqrt", "rsqrt", *DTYPES)
"""Functions that are finite for some finite arguments only."""
OF_ALL = tuple(x.name for x in FUNCTIONS.values() if x.takes == ("number",) and x.name not in OF_SOME and not x.symbol)


@pytest.fixture(scope="module")
def registry() -> Registry:
    registry = Registry()
    registry.warm(
        [
            *(
                *members(),
                *EIGHT_BITS,
                *GATES_AND_SCALES,
                *GATES_OF_ROWS,
                *OF_EXPERTS,
                *PARTS,
                *MATRICES,
                *MATRIX_PARTS,
            ),
            *(*without_tma(), *OF_EVERY_TYPE),
        ]
    )
    return registry


@dataclass
class Case:
    """A GEMM with an epilogue, its operands in guarded memory."""

    config: GemmConfig
    epilogue: Epilogue
    a: Guarded
    b: Guarded
    c: Guarded | None
    d: Guarded
    passed: dict[str, Any]
    guards: dict[str, Guarded]
    alpha: float
    beta: float | None

    def run(self, registry: Registry) -> None:
        arguments: dict[str, Any] = dict(self.passed)
        if "alpha" in self.epilogue.factors:
            arguments["alpha"] = self.alpha
        if "beta" in self.epilogue.factors:
            arguments["beta"] = self.beta
        with gemmill.plan(
            self.a.tensor,
            self.b.tensor,
            out=self.d.tensor,
            c=self.c.tensor if self.c else None,
            accumulator=self.config.accumulator,
            registry=registry,
            kernel=self.config,
            epilogue=self.config.epilogue,
            **arguments,
        ) as launch:
            launch()
            launch()  # reductions start anew
        torch.cuda.synchronize()

    def inputs(self) -> dict[str, Any]:
        sums = self.a.tensor.double() @ self.b.tensor.double()  # exact: small integers
        known: dict[str, Any] = sums_by_name(self.epilogue, sums)
        if self.c is not None:
            known["c"] = self.c.tensor.double()
        like = next(iter(known.values())) * 0
        known |= {"alpha": like + self.alpha, "beta": like + (self.beta or 0.0)}
        shapes = {"row": (..., None), "column": (..., None, slice(None)), "batch": (..., None, None)}
        for o in self.epilogue.operands:
            value = self.passed[o.name]
            value = value.double() if hasattr(value, "double") else torch.tensor(value, device="cuda").float().double()
            value = value.reshape(()) if o.kind == "scalar" else value[shapes[o.kind]] if o.kind in shapes else value
            known[o.name] = value + like
        return known

    def check(self) -> None:
        actual = {"d": self.d.tensor, **{o.name: self.passed[o.name] for o in self.epilogue.outputs}}
        check(self.epilogue, self.inputs(), actual, self.config.d.dtype)
        assert self.d.intact(), "memory around D was written"
        assert all(guard.intact() for guard in self.guards.values()), "memory around an output was written"


def check(epilogue: Epilogue, inputs: dict[str, Any], actual: dict[str, Any], d_dtype: DTypeName) -> None:
    """Every element of D and of every output is within its bounds."""
    dtypes = {"d": d_dtype, **{o.name: o.dtype for o in epilogue.outputs}}
    for name, wanted in evaluate(epilogue, inputs, torch, d_dtype).items():
        got = actual[name].double()
        low, high = bounds(wanted, dtypes[name])
        wrong = ~((got >= low.reshape(got.shape)) & (got <= high.reshape(got.shape)))  # so that a NaN is wrong
        first = tuple(wrong.nonzero()[0].tolist()) if wrong.any() else ()
        assert not wrong.any(), (
            f"{name} of `{epilogue}`: {int(wrong.sum())} of {wrong.numel()} wrong, first at {first}: "
            f"{got[first]} is not in [{low.reshape(got.shape)[first]}, {high.reshape(got.shape)[first]}]"
        )


def bounds(wanted: Bounded, dtype: str) -> tuple[Any, Any]:
    """What a value may be after its conversion, which keeps the order."""
    low, high = wanted.value - wanted.error, wanted.value + wanted.error
    if dtype in ("f32", "f64", "ue8m0"):  # scales in ue8m0 are rounded already
        return low - 2.0**-23 * abs(low) - 2.0**-126, high + 2.0**-23 * abs(high) + 2.0**-126
    return rounded(low, dtype, torch), rounded(high, dtype, torch)


def make_case(config: GemmConfig, m: int, n: int, k: int, batch: int | None = None, seed: int = 0) -> Case:
    epilogue = parse(config.epilogue)
    m_d, n_d = epilogue.shape_of_d(m, n)

    def matrix(rows: int, columns: int, dtype: str, columns_contiguous: bool = True) -> Guarded:
        return guarded(rows, columns, dtype, columns_contiguous=columns_contiguous, batch=batch)

    a = matrix(m, k, config.a.dtype, config.a.major == "k")
    b = matrix(k, n, config.b.dtype, config.b.major == "mn")
    fill(a.tensor, "integers", seed, config.a.dtype)
    fill(b.tensor, "integers", seed + 1, config.b.dtype)
    c = matrix(m_d, n_d, config.c.dtype, config.c.major == "n") if config.c else None
    if config.c is not None and c is not None:
        fill(c.tensor, "random", seed + 2, config.c.dtype)
    d = matrix(m_d, n_d, config.d.dtype, config.d.major == "n")

    generator = torch.Generator(device="cuda").manual_seed(seed)
    outer = () if batch is None else (batch,)
    passed: dict[str, Any] = {}
    guards = {}
    for index, o in enumerate(epilogue.operands):
        dtype = getattr(torch, DTYPES[o.dtype].torch)
        own = outer if index % 2 == 0 or o.kind in ("batch", "matrix") else ()
        shape = {"scalar": (1,), "row": (*own, m_d), "column": (*own, n_d), "batch": own, "matrix": (*own, m_d, n_d)}[
            o.kind
        ]
        if o.major != "any":
            matrices = matrix(m_d, n_d, o.dtype, columns_contiguous=o.major == "n")
            fill(matrices.tensor, "random", seed + 3 + index, o.dtype)
            passed[o.name] = matrices.tensor
            continue
        # Off the alignment of pairs now and then.
        flat = torch.randn(torch.Size(shape).numel() + 1, generator=generator, device="cuda").to(dtype)
        passed[o.name] = flat[(index + m) % 2 :][: torch.Size(shape).numel()].reshape(shape)
        if o.kind == "scalar" and m % 2 == 0:
            passed[o.name] = 2.5
        elif o.kind == "scalar":
            passed[o.name] = (passed[o.name].float().abs() + 1).to(dtype)
    for output in epilogue.outputs:
        if output.is_reduction:
            shape = {"scalar": (1,), "batch": outer, "row": (*outer, m_d), "column": (*outer, n_d)}[output.kind]
            passed[output.name] = torch.full(shape, float("nan"), device="cuda")
        else:
            major = output.major if output.major != "any" else config.d.major
            columns = n_d // BLOCK if output.kind == "block" else n_d
            contiguous = major == "n" and output.kind != "block"
            guards[output.name] = matrix(m_d, columns, output.dtype, columns_contiguous=contiguous)
            passed[output.name] = guards[output.name].tensor
    return Case(config, epilogue, a, b, c, d, passed, guards, alpha=0.25, beta=-1.5)


@pytest.mark.parametrize("config", [*members(), *NARROW], ids=kernel_name)
def test_expressions(config: GemmConfig, registry: Registry) -> None:
    for seed, (m, n, k) in enumerate(SHAPES):
        case = make_case(config, m, n, k, seed=seed)
        case.run(registry)
        case.check()


@pytest.mark.parametrize("function", OF_ALL)
@pytest.mark.parametrize(("dtype", "d_dtype"), [("bf16", "bf16"), ("f16", "f16"), ("f16", "f32")])
def test_functions_of_every_value(dtype: str, d_dtype: str, function: str, registry: Registry) -> None:
    """Sums of one product each, of every finite value of a type; what is less exact for a D of 16 bits too."""
    config = kernel(ab=dtype, d__dtype=d_dtype, tile="128x128x64", epilogue=f"d = {function}(acc)")
    values = torch.arange(1 << 16, device="cuda").to(torch.int16).view(getattr(torch, DTYPES[dtype].torch))
    values = values.nan_to_num(0.0, 0.0, 0.0).reshape(256, 256)
    d = torch.full((256, 256), float("nan"), device="cuda", dtype=getattr(torch, DTYPES[d_dtype].torch))
    one = torch.eye(256, device="cuda", dtype=values.dtype)
    gemmill.matmul(one, values.t().contiguous().t(), out=d, epilogue=config.epilogue, kernel=config, registry=registry)
    wanted = evaluate(parse(config.epilogue), {"acc": values.double()}, torch, config.d.dtype)["d"]
    low, high = bounds(wanted, d_dtype)
    wrong = ~((d >= low) & (d <= high))
    assert not wrong.any(), [(float(v), float(got)) for v, got in zip(values[wrong], d[wrong], strict=True)][:8]


@pytest.mark.parametrize("function", ["gelu", "sigmoid", "silu", "tanh"])
def test_functions_of_every_value_in_scaled_blocks(function: str, registry: Registry) -> None:
    """The same in blocks of a sign and an exponent or two, whose scales leave no error in the shadow of another."""
    epilogue = f"h = {function}(acc); s[m, n/128] = scale(h); d = h / s"
    config = kernel(d__dtype="e4m3", tile="128x128x64", epilogue=canonical(epilogue))
    values = torch.arange(1 << 16, device="cuda").to(torch.int16).view(torch.bfloat16)
    values = values.nan_to_num(0.0, 0.0, 0.0).reshape(256, 256)
    one, s = torch.eye(256, device="cuda", dtype=values.dtype), torch.empty(256, 2, device="cuda")
    d = torch.empty(256, 256, device="cuda", dtype=torch.float8_e4m3fn)
    options: dict[str, Any] = {"epilogue": config.epilogue, "kernel": config, "registry": registry}
    gemmill.matmul(one, values.t().contiguous().t(), out=d, s=s, **options)
    check(parse(config.epilogue), {"acc": values.double()}, {"d": d, "s": s}, "e4m3")


@pytest.mark.parametrize("config", EIGHT_BITS, ids=lambda config: f"{config.a.dtype} {config.epilogue}")
def test_eight_bits(config: GemmConfig, registry: Registry) -> None:
    for seed, (m, n, k) in enumerate(((256, 256, 128), (200, 160, 96))):
        case = make_case(config, m, n, k, seed=seed)
        case.run(registry)
        case.check()


@pytest.mark.parametrize("config", GATES_AND_SCALES, ids=kernel_name)
def test_gates_of_eight_columns_and_scales_of_blocks(config: GemmConfig, registry: Registry) -> None:
    shapes = ((256, 512, 128), (200, 256, 72), (37, 768, 40), (100, 384, 64), (70, 48, 64), (3, 1552, 136))
    for seed, (m, n, k) in enumerate(shapes):
        if not fault_of_n(parse(config.epilogue), n):
            case = make_case(config, m, n, k, seed=seed)
            case.a.tensor[m // 2] = 0
            case.run(registry)
            case.check()


@pytest.mark.parametrize("config", GATES_OF_ROWS, ids=kernel_name)
def test_gates_of_eight_rows(config: GemmConfig, registry: Registry) -> None:
    shapes = ((256, 512, 128), (208, 256, 72), (16, 768, 40), (400, 72, 64), (48, 8, 64), (1552, 24, 136))
    for seed, (m, n, k) in enumerate(shapes):
        case = make_case(config, m, n, k, seed=seed)
        case.run(registry)
        case.check()
    case = make_case(config, 144, 96, 64, batch=3)
    case.run(registry)
    case.check()


def test_scales_of_what_is_not_finite(registry: Registry) -> None:
    config = config_of("h = acc; s[m, n/128] = scale(h); d = h / s", {"tile": "128x128x64"}, d__dtype="e4m3")
    case = make_case(config, 64, 256, 64)
    case.a.tensor[5, 0], case.a.tensor[6, 0] = float("inf"), float("nan")
    case.run(registry)
    scales, d = case.passed["s"], case.d.tensor.float()
    others = torch.ones(64, dtype=torch.bool, device="cuda")
    others[5:7] = False
    assert torch.isfinite(scales[others]).all()
    assert torch.isfinite(d[others]).all()
    assert not torch.isfinite(scales[5:7]).any()
    assert torch.isnan(d[6]).all()


@pytest.mark.parametrize("config", OF_EXPERTS, ids=kernel_name)
def test_products_of_experts(config: GemmConfig, registry: Registry) -> None:
    """Groups of 0, 130, 1 and 150 rows: what they hold is right, and nothing else is written."""
    batching, epilogue, n, k = config.scheduler.batching, parse(config.epilogue), 512, 384
    sizes = (300,) if batching == "strided" else (0, 130, 1, 150)
    rows = (len(sizes), 160) if batching == "masked" else (300,)
    groups = () if batching == "strided" else (len(sizes),)
    generator = torch.Generator(device="cuda").manual_seed(0)

    def integers(*shape: int, least: int = -2) -> Any:
        return torch.randint(least, 3, shape, device="cuda", generator=generator).double()

    sums = [integers(*rows, k), integers(*groups, n, k)]
    dtype = getattr(torch, DTYPES[config.a.dtype].torch)
    a, b = (x.to(dtype) for x in sums)
    options: dict[str, Any] = {}
    if config.promote:  # powers of two, so that all sums are exact
        a_scale, b_scale = (
            2 ** integers(*rows, k // 128, least=-1),
            2 ** integers(*groups, n // 128, k // 128, least=-1),
        )
        sums = [sums[0] * a_scale.repeat_interleave(128, -1), sums[1] * in_squares(b_scale)]
        options = {"a_scale": a_scale.float(), "b_scale": b_scale.float().mT, "fast_accumulation": False}
    if batching != "strided":
        counts = torch.tensor(sizes, device="cuda", dtype=torch.int32)
        options |= {"counts": counts} if batching == "masked" else {"offsets": counts.cumsum(0).int()}

    def unwritten(blocks: int, dtype: str) -> Any:
        return torch.full((*rows, n // 2 // blocks), 0.5, device="cuda").to(getattr(torch, DTYPES[dtype].torch))

    outputs = {o.name: unwritten(BLOCK, o.dtype).mT.contiguous().mT for o in epilogue.outputs}
    actual = {"d": unwritten(1, config.d.dtype), **outputs}
    options |= {"registry": registry, "kernel": config, "epilogue": config.epilogue, **outputs}
    with gemmill.plan(a, b.mT, out=actual["d"], **options) as launch:
        launch()
    torch.cuda.synchronize()
    outside = torch.ones(rows, dtype=torch.bool, device="cuda")
    for i, (size, end) in enumerate(zip(sizes, itertools.accumulate(sizes), strict=True)):
        at: Any = (i, slice(size)) if batching == "masked" else slice(end - size, end)
        outside[at] = False
        if size:
            inputs = sums_by_name(epilogue, sums[0][at] @ (sums[1][i] if groups else sums[1]).mT)
            check(epilogue, inputs, {name: x[at] for name, x in actual.items()}, config.d.dtype)
    for name, x in actual.items():
        assert (x.float()[outside] == 0.5).all(), f"{name} was written outside of the groups"


def in_squares(scales: Any) -> Any:
    """Scales of blocks of 128 x 128, for each element."""
    return scales.repeat_interleave(128, -1).repeat_interleave(128, -2)


@pytest.mark.parametrize("masked", [False, True])
def test_two_products_of_an_e4m3_layer(masked: bool) -> None:
    """The first product's D and scales are the second's A and its scales, with kernels that gemmill selects."""
    e4m3, experts, rows, k, f = torch.float8_e4m3fn, 3, 200, 512, 384
    counts = torch.tensor([200, 0, 77], device="cuda", dtype=torch.int32)
    used = (experts, rows) if masked else (int(counts.sum()),)
    groups = {"counts": counts} if masked else {"offsets": counts.cumsum(0).int()}
    x, w1, w2 = (torch.randn(s, device="cuda").to(e4m3) for s in ((*used, k), (experts, 2 * f, k), (experts, k, f)))
    x_scale = torch.rand(*used, k // 128, device="cuda") + 0.5
    scales = [torch.rand(*w.shape[:1], w.shape[1] // 128, w.shape[2] // 128, device="cuda") / 16 for w in (w1, w2)]
    s = torch.empty(*used[:-1], f // 128, used[-1], device="cuda").mT
    h = gemmill.grouped_matmul(
        *(x, w1.mT),
        **groups,
        a_scale=x_scale,
        b_scale=scales[0].mT,
        epilogue="h = silu(gate8) * up8; s[m, n/128] = scale(h); d = h / s",
        out_dtype=e4m3,
        s=s,
    )
    y = gemmill.grouped_matmul(h, w2.mT, **groups, a_scale=s, b_scale=scales[1].mT)
    exact = x.double() * x_scale.double().repeat_interleave(128, -1)
    w1, w2 = (w.double() * in_squares(scale.double()) for w, scale in zip((w1, w2), scales, strict=True))
    for i, end in enumerate(counts.cumsum(0).tolist()):
        at = (i, slice(int(counts[i]))) if masked else slice(end - int(counts[i]), end)
        gate, up = (exact[at] @ w1[i].mT).unflatten(-1, (-1, 2, 8)).unbind(-2)
        wanted = (torch.nn.functional.silu(gate) * up).flatten(-2) @ w2[i].mT
        error = (y[at].double() - wanted).square().sum() / wanted.square().sum().clamp(min=1e-30)
        assert error.sqrt() < 0.05  # e4m3 rounds to about 0.025


@pytest.mark.parametrize("config", PARTS, ids=kernel_name)
def test_parts_of_k(config: GemmConfig, registry: Registry) -> None:
    for seed, (m, n, k) in enumerate(((256, 256, 512), (200, 176, 456))):
        case = make_case(config, m, n, k, seed=seed)
        case.run(registry)
        case.check()


@pytest.mark.parametrize("config", [*MATRICES, *MATRIX_PARTS], ids=kernel_name)
def test_matrices_by_tma(config: GemmConfig, registry: Registry) -> None:
    for seed, (m, n, batch) in enumerate(((256, 256, None), (200, 176, None), (72, 592, 2))):
        case = make_case(config, m, n, 200, batch, seed=seed)
        case.run(registry)
        case.check()


@pytest.mark.parametrize("config", OF_EVERY_TYPE, ids=lambda config: f"{config.schedule} {config.epilogue}")
def test_operands_of_every_type(config: GemmConfig, registry: Registry) -> None:
    for seed, (m, n, k, batch) in enumerate(((256, 256, 128, None), (131, 80, 64, 3))):
        case = make_case(config, 1 if config.schedule == "gemv" else m, n, k, batch, seed=seed)
        case.run(registry)
        case.check()


@pytest.mark.parametrize("m", [3, 512])
def test_a_bias_of_s32_is_exact(m: int) -> None:
    a, b = (torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8) for shape in ((m, 4096), (512, 4096)))
    bias = torch.randint(-(2**28), 2**28, (512,), device="cuda", dtype=torch.int32)
    d = gemmill.matmul(a, b.mT, epilogue="d = relu(acc + bias[n])", bias=bias)
    wanted = (a.double() @ b.double().mT + bias).relu()
    assert torch.equal(d.double(), wanted)


@pytest.mark.parametrize("m", [1, 64])
def test_a_bias_of_f64(m: int) -> None:
    x, weight, bias = (torch.randn(s, device="cuda", dtype=torch.float64) for s in ((m, 512), (256, 512), (256,)))
    wanted = x @ weight.mT + bias
    found = gemmill.matmul(x, weight.mT, epilogue="d = acc + bias[n]", bias=bias)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-11)
    torch.compiler.reset()
    with gemmill.torch.enabled():
        found = torch.compile(torch.nn.functional.linear)(x, weight, bias)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("config", list(without_tma()), ids=kernel_name)
def test_without_tma(config: GemmConfig, registry: Registry) -> None:
    for seed, (m, n, k, batch) in enumerate(((256, 256, 128, None), (131, 70, 75, None), (37, 141, 40, 3))):
        case = make_case(config, m, n, k, batch, seed=seed)
        case.run(registry)
        case.check()


def test_operands_of_any_layout_are_served() -> None:
    a = torch.randn(70, 131, device="cuda", dtype=torch.bfloat16)[:, 1:]
    b = torch.randn(130, 90, device="cuda", dtype=torch.bfloat16)[:, ::2]
    bias, r = torch.randn(45, device="cuda"), torch.randn(45, 70, device="cuda").t()
    d = gemmill.matmul(a, b, epilogue="d = relu(acc + bias[n]) + r[m, n]", bias=bias, r=r)
    wanted = (a.double() @ b.double() + bias.double()).relu() + r.double()
    torch.testing.assert_close(d.double(), wanted, rtol=2**-7, atol=1e-2)


def test_matrices_are_moved_by_tma_where_they_can_be() -> None:
    a = torch.randn(3, 256, 512, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(3, 512, 512, device="cuda", dtype=torch.bfloat16)
    wide = torch.randn(3, 256, 520, device="cuda", dtype=torch.bfloat16)
    sums = a.double() @ b.double()
    layouts = {
        "n": (wide[..., 8:], wide[0, :, :512], wide[..., :512]),
        "m": (torch.randn(3, 512, 256, device="cuda", dtype=torch.bfloat16).mT,),
        "any": (wide[..., 1:513], wide[:, :1, :512], wide[..., :1]),
    }
    for major, operands in layouts.items():
        for r in operands:
            aux = torch.empty(3, 256, 512, device="cuda")
            epilogue = "d = acc + r[m, n]; aux = acc"
            with gemmill.plan(a, b, epilogue=epilogue, r=r, aux=aux) as plan:
                plan()
                assert plan.kernel is not None
                majors = parse(plan.kernel.epilogue).majors
                expected = {"n": "m", "m": "n"} if plan.swap_ab else {}
                assert majors.get("r", "any") == expected.get(major, major)
                assert majors.get("aux") == expected.get("n", "n")
                torch.testing.assert_close(plan.out.double(), sums + r.double(), rtol=2**-7, atol=1e-3)
                torch.testing.assert_close(aux.double(), sums, rtol=1e-4, atol=1e-3)
                if major == "n":
                    with pytest.raises(OperandError, match="multiple of 16 bytes"):
                        plan.rebind(
                            r=torch.empty(3 * 256 * 520 + 8, device="cuda", dtype=torch.bfloat16)[1:].as_strided(
                                r.shape, r.stride()
                            )
                        )
                    other = wide.clone().as_strided(r.shape, r.stride())
                    plan.rebind(r=other)
                    plan()
                    torch.testing.assert_close(plan.out.double(), sums + other.double(), rtol=2**-7, atol=1e-3)
    with pytest.raises(OperandError, match="r is n-major in the epilogue"):
        gemmill.matmul(a, b, epilogue="d = acc + r.bf16.n[m, n]", r=wide[..., 1:513])


@pytest.mark.parametrize("config", list(members())[::3], ids=kernel_name)
def test_batches(config: GemmConfig, registry: Registry) -> None:
    case = make_case(config, 130, 144, 64, batch=3, seed=7)
    case.run(registry)
    case.check()


def test_c_is_not_read_where_beta_is_0(registry: Registry) -> None:
    config = config_of(EPILOGUES[0], TILES[0])
    case = make_case(config, 256, 128, 64)
    assert case.c is not None
    case.c.tensor.fill_(float("nan"))
    case.beta = 0.0
    case.run(registry)
    case.c.tensor.fill_(0.0)
    case.check()


def test_matmul_selects_a_kernel_and_takes_types_from_tensors() -> None:
    a = torch.randn(3, 64, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(512, device="cuda", dtype=torch.bfloat16)
    aux = torch.empty(3, 64, 512, device="cuda", dtype=torch.bfloat16)
    amax = torch.empty((), device="cuda")
    for _ in range(2):
        d = gemmill.matmul(
            a, b, epilogue="aux[m, n] = acc + bias[n]; d = gelu(aux); amax = max(abs(d))", bias=bias, aux=aux, amax=amax
        )
    before = (a.double() @ b.double()) + bias.double()
    wanted = torch.nn.functional.gelu(before)
    torch.testing.assert_close(aux.double(), before, rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(d.double(), wanted, rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(amax.double(), wanted.abs().max(), rtol=1e-3, atol=0)
    # A batch that shares B and whose operands do not depend on it is one tall matrix.
    with gemmill.plan(a, b, epilogue="d = relu(acc + bias[n])", bias=bias) as plan:
        assert (plan.problem.m, plan.problem.batch) == (192, 1)
        plan()
        torch.testing.assert_close(plan.out.double(), before.relu(), rtol=2**-7, atol=1e-3)
        other = torch.randn_like(bias)
        plan.rebind(bias=other)
        plan()
        wanted = (before - bias.double() + other.double()).relu()
        torch.testing.assert_close(plan.out.double(), wanted, rtol=2**-7, atol=1e-3)
        with pytest.raises(OperandError, match="the plan needs"):
            plan.rebind(bias=bias.float())
    gated = gemmill.matmul(a, b, epilogue="d = silu(gate) * up")
    sums = a.double() @ b.double()
    wanted = torch.nn.functional.silu(sums[..., 0::2]) * sums[..., 1::2]
    torch.testing.assert_close(gated.double(), wanted, rtol=2**-7, atol=1e-3)


def test_rows_and_columns_are_the_callers_where_the_kernel_transposes() -> None:
    a = torch.randn(96, 128, device="cuda", dtype=torch.bfloat16)
    b = torch.randint(-100, 100, (144, 128), device="cuda", dtype=torch.int8).t()
    row, bias, r = (torch.randn(shape, device="cuda") for shape in ((96,), (144,), (96, 144)))
    top = torch.empty(96, device="cuda")
    epilogue = "d = acc * 0.125 * row[m] + bias[n] + r[m, n]; top[m] = max(acc)"
    d = gemmill.matmul(a, b, epilogue=epilogue, row=row, bias=bias, r=r, top=top)
    sums = a.double() @ b.double()
    wanted = sums * 0.125 * row.double()[:, None] + bias.double() + r.double()
    torch.testing.assert_close(d.double(), wanted, rtol=2**-7, atol=1e-2)
    torch.testing.assert_close(top.double(), sums.amax(1), rtol=1e-4, atol=1e-2)


def test_without_rows_reductions_are_what_they_start_from() -> None:
    a, b = (torch.ones(shape, dtype=torch.bfloat16, device="cuda") for shape in ((0, 64), (64, 32)))
    amax, sums = torch.full((1,), 7.0, device="cuda"), torch.full((32,), 7.0, device="cuda")
    text = "d = acc; amax = max(abs(d)); sums[n] = sum(d)"
    launch = gemmill.plan(a, b, epilogue=text, amax=amax, sums=sums)
    for call in (launch, lambda: gemmill.matmul(a, b, epilogue=text, amax=amax, sums=sums)):
        amax.fill_(7)
        sums.fill_(7)
        call()
        assert amax.item() == -float("inf")
        assert not sums.any()


def test_reductions_in_a_graph_and_over_again() -> None:
    a = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    amax, rows = torch.empty(1, device="cuda"), torch.empty(512, device="cuda")
    plan = gemmill.plan(a, b, epilogue="d = acc; amax = max(abs(d)); per_row[m] = min(d)", amax=amax, per_row=rows)
    plan()
    torch.cuda.synchronize()
    first = amax.clone(), rows.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan()
        plan()
    for _ in range(50):
        amax.fill_(1e9)
        rows.fill_(-1e9)
        graph.replay()
        assert torch.equal(amax, first[0])
        assert torch.equal(rows, first[1])
    a[3, 5] = float("nan")
    graph.replay()
    assert torch.isnan(amax).all()
    assert torch.isnan(rows).nonzero().flatten().tolist() == [3]


def test_rebind_refuses_an_output_in_the_memory_of_another() -> None:
    a = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    b = torch.zeros(64, 128, device="cuda", dtype=torch.bfloat16)
    out, aux = torch.empty(2, 64, 128, device="cuda", dtype=torch.bfloat16)
    with gemmill.plan(a, b, out=out, epilogue="d = acc; aux = acc", aux=aux) as launch:
        for changes in ({"aux": out}, {"out": aux}):
            with pytest.raises(OperandError, match=r"^out and aux overlap in memory"):
                launch.rebind(**changes)
        launch.rebind(out=aux, aux=out)


@pytest.mark.parametrize(
    ("epilogue", "passed", "says"),
    [
        ("d = acc + bias[n]", {}, "bias is missing"),
        (
            "d = acc + bias[n]",
            {"bais": 1},
            "bais is passed, but the epilogue `d = acc .* does not use it, did you mean bias",
        ),
        ("d = acc + bias[n]", {"bias": 1.0}, "must be a tensor in GPU memory"),
        ("d = acc + bias[n]", {"bias": (64,)}, r"bias has shape \(64,\); bias\[n\] must be \(128,\)"),
        ("d = acc + bias.f16[n]", {"bias": (128,)}, r"bias is f32, but the epilogue says bias.f16"),
        ("d = acc + r[m, n]", {"r": (3, 128)}, "does not broadcast"),
        ("d = acc; aux = acc", {"aux": (1, 128)}, "aux has shape"),
        ("d = acc; top[m] = max(acc)", {"top": (1,)}, "top has shape"),
        ("d = acc + beta * c", {}, "reads c: pass c="),
        ("d = acc", {"alpha": 2.0}, "alpha is 2.0, but the epilogue `d = acc` does not read it"),
        ("d = acc +", {}, "epilogue: invalid syntax"),
        (None, {"bias": 1.0}, "unexpected argument 'bias'"),
    ],
)
def test_wrong_operands_are_refused(epilogue: str | None, passed: dict[str, Any], says: str) -> None:
    a = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    given = {name: torch.zeros(x, device="cuda") if isinstance(x, tuple) else x for name, x in passed.items()}
    with pytest.raises((OperandError, TypeError), match=says):
        gemmill.matmul(a, b, epilogue=epilogue, **given)
