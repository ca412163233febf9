"""Launches of one arithmetic give the same bits, and with ``bits="invariant"`` a row has the same bits in any batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from tests.gpu.arithmetic import (
    LEAST_K,
    TYPES,
    Case,
    Formats,
    Member,
    Row,
    bits,
    extents,
    kernels,
    launch,
    members,
    sample,
    slices_of,
    survey,
)
from tests.gpu.harness import torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.epilogues.parse import LINEAR, canonical
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.kernels.variations import with_epilogue, with_types

pytestmark = pytest.mark.gpu

COUNTS: Mapping[str, int] = MappingProxyType(
    {"e5m2": 24, "scaled": 24, "narrow": 32, "several": 16, "s8": 16, "u8": 12, "f32": 12, "f64": 16}
)
"""Kernels of each set in the sample, where not 60."""


@pytest.fixture(scope="module")
def sampled(registry: Registry) -> dict[str, list[GemmConfig]]:
    """Kernels of each set, compiled."""
    found = {types: sample(kernels(types, registry), COUNTS.get(types, 60), random.Random(types)) for types in TYPES}
    registry.warm([config for configs in found.values() for config in configs])
    return found


@pytest.mark.parametrize("types", TYPES)
def test_launches_of_one_arithmetic_give_the_same_bits(
    types: str, sampled: dict[str, list[GemmConfig]], registry: Registry
) -> None:
    problems = extents(3, random.Random(types), LEAST_K.get(types, 1))
    rows = [*survey(members(sampled[types]), problems, 0, registry, times=2)]
    differing = [(row.data, row.extents, entry) for row in rows for entry in row.differing]
    if types == "f64":  # The payload of a NaN is that of one operand, and depends on which of two the kernel calls A.
        differing = [x for x in differing if not x[2]["only_nan"]]
    assert not differing, f"{len(differing)} of {sum(row.launches for row in rows)} launches differ; {differing[:3]}"
    assert not [text for row in rows for text in row.failed]


# Epilogues: on exact sums, every kernel gives the same bits


@dataclass(frozen=True)
class Fused:
    """An epilogue, and the types of D and C."""

    text: str
    d: str
    c: str | None = None


FUSED = (
    Fused(LINEAR, "f32"),
    Fused(LINEAR, "f32", "f32"),
    Fused(LINEAR, "bf16", "bf16"),
    Fused("d = relu(alpha * acc + bias[n])", "f32"),
    Fused("d = gelu(acc + bias[n])", "bf16"),
    Fused("d = gelu(acc * columns[n] + bias[n])", "f32"),
    Fused("d = silu(alpha * acc * per_row[m] * columns[n] + bias[n])", "f32"),
    Fused("d = acc * columns[n] + acc * per_row[m] + bias[n]", "f32"),
    Fused("d = alpha * acc * columns[n] + beta * c", "f32", "f32"),
)
FACTORS = ((1.0, 1.0), (0.7, 1 / 3), (-3.0, 0.1), (-0.3, 0.0))
"""Alpha and beta: a negative alpha makes zeros negative, and with a beta of 0 no kernel reads C."""


def of_each_kind(registry: Registry) -> list[GemmConfig]:
    """A bf16 kernel of each family, schedule, decomposition and form of the epilogue."""
    found: dict[Any, GemmConfig] = {}
    for config in kernels("bf16", registry):
        if config.c is None and config.d.dtype == "bf16" and config.scheduler.batching == "strided":
            narrow = config.family == "wgmma" and config.tile.n == 8
            kind = config.family, config.schedule, config.scheduler.decomposition, config.d.major, narrow
            found.setdefault(kind, config)
    return [*found.values()]


def fused(config: GemmConfig, kind: Fused) -> GemmConfig | None:
    """A kernel with the types and the epilogue of a kind; None where rules refuse it."""
    major = config.d.major if kind.c else None
    typed = with_types(config, "bf16", "bf16", kind.c, major, kind.d)
    return typed if typed is None or kind.text == LINEAR else with_epilogue(typed, canonical(kind.text))


@pytest.fixture(scope="module")
def by_kind(registry: Registry) -> dict[Fused, list[GemmConfig]]:
    """Kernels with each epilogue, compiled."""
    bases = of_each_kind(registry)
    found = {kind: [x for config in bases if (x := fused(config, kind)) is not None] for kind in FUSED}
    registry.warm([config for configs in found.values() for config in configs])
    return found


def arguments(kind: Fused, m: int, n: int) -> dict[str, Any]:
    """Operands of an expression: sums with them are not exact."""
    generator = torch.Generator().manual_seed(5)
    shapes = {"per_row": m, "columns": n, "bias": n}
    return {
        name: torch.randn(extent, generator=generator).cuda() for name, extent in shapes.items() if name in kind.text
    }


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: f"{kind.text} {kind.c} {kind.d}")
@pytest.mark.parametrize("factors", FACTORS, ids=str)
def test_kernels_of_all_families_round_an_epilogue_equally(
    kind: Fused, factors: tuple[float, float], by_kind: dict[Fused, list[GemmConfig]], registry: Registry
) -> None:
    m, n, k = 200, 136, 304
    formats = Formats("bf16", "bf16", "none", "none", "f32", kind.c, kind.d)
    case = Case(formats, (m, n, k), "exact", 1, arguments=arguments(kind, m, n))
    case.alpha, case.beta = factors
    row, draw = Row(formats, case.extents, case.data), random.Random(0)
    first: dict[str, tuple[str, Any]] = {}
    assert len(by_kind[kind]) >= 8
    for config in by_kind[kind]:
        member = Member(config, slices_of(config)[-1])
        row.add("all", member, launch(member, case, draw, registry), first)
    assert not row.differing, [(entry["kernel"], entry["elements"], entry["bits"]) for entry in row.differing]


# bits="invariant"


ROWS = 4096
WEIGHTS = ((4096, 4096), (768, 512), (256, 8192), (1000, 1000), (1, 4096))
"""N and K: layers, few columns with a deep K, which slices may share, and extents that no tile divides."""
Call = Callable[[Any], Any]


def operands(types: str, m: int, n: int, k: int) -> tuple[Any, Any, dict[str, Any]]:
    """A, a K-major B, and the options of a call."""
    generator = torch.Generator("cuda").manual_seed(3)
    a, b = (torch.randn(extent, k, device="cuda", generator=generator) for extent in (m, n))
    dtype = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "tf32": torch.float32}[types]
    return a.to(dtype), b.to(dtype).T, {"bits": "invariant", "tf32": types == "tf32"}


def unaligned(a: Any) -> Any:
    """The same values at an odd place, in rows of an odd stride."""
    rows, columns = a.shape
    memory = torch.zeros(rows * (columns + 1) + 1, dtype=bits(a).dtype, device="cuda")
    view = memory[1:].view(rows, columns + 1)[:, :columns]
    view.copy_(bits(a))
    return view.view(a.dtype)


@pytest.mark.parametrize("shape", WEIGHTS, ids=str)
@pytest.mark.parametrize("types", ["bf16", "e4m3", "tf32"])
def test_rows_have_the_same_bits_in_any_batch(types: str, shape: tuple[int, int]) -> None:
    n, k = shape
    a, b, options = operands(types, ROWS, n, k)
    wanted = bits(gemmill.matmul(a, b, **options))
    draw = random.Random(0)
    for count in (1, 2, 3, 8, 16, 17, 64, 100, 256, 1000):
        begin = draw.randint(0, ROWS - count)
        rows = slice(begin, begin + count)
        assert torch.equal(bits(gemmill.matmul(a[rows], b, **options)), wanted[rows]), f"{count} rows"
        moved = gemmill.matmul(unaligned(a[rows]), unaligned(b.T).T, **options)
        assert torch.equal(bits(moved), wanted[rows]), f"{count} rows, unaligned"
        by_columns = torch.empty_like(moved.T.contiguous()).T
        gemmill.matmul(a[rows], b, out=by_columns, **options)
        assert torch.equal(bits(by_columns), wanted[rows]), f"{count} rows, D contiguous along M"
        if types != "e4m3":
            turned = gemmill.matmul(a[rows].T.contiguous().T, b.contiguous(), **options)
            assert torch.equal(bits(turned), wanted[rows]), f"{count} rows, other majors"
    for count in (2, 64):
        batched = gemmill.matmul(a.view(count, -1, k), b.expand(count, k, n), **options)
        assert torch.equal(bits(batched).view(wanted.shape), wanted), f"a batch of {count}"


@pytest.mark.parametrize("types", ["bf16", "e4m3"])
def test_rows_have_the_same_bits_in_any_group(types: str) -> None:
    n, k, count = 512, 1024, 4
    a, b, options = operands(types, ROWS, n, k)
    matrices = [bits(b), bits(b).roll(1, 0), bits(b), bits(b).roll(2, 0)]
    experts = torch.stack(matrices).mT.contiguous().mT.view(b.dtype)
    scales = torch.rand(ROWS, k // 128, device="cuda"), torch.rand(count, k // 128, n // 128, device="cuda")
    scales[1][2] = scales[1][0]
    draw = random.Random(0)

    def scaled(slots: Callable[[Any], Any]) -> dict[str, Any]:
        """Options of a call, with scales of blocks for fp8."""
        return options | ({"a_scale": slots(scales[0]), "b_scale": scales[1]} if types == "e4m3" else {})

    def grouped(sizes: list[int]) -> Any:
        ends = torch.tensor([sum(sizes[: i + 1]) for i in range(count)], dtype=torch.int32, device="cuda")
        rows = slice(0, sum(sizes))
        return bits(gemmill.grouped_matmul(a[rows], experts, ends, **scaled(lambda x: x[rows])))

    wanted = grouped([ROWS, 0, 0, 0])
    for size in (1, 2, 7, 64, 130, 256, 1000):
        before = draw.randint(0, ROWS - size)
        assert torch.equal(grouped([size, 0, 0, 0]), wanted[:size])
        third = grouped([before // 2, before - before // 2, size, 0])
        assert torch.equal(third[before:], wanted[before : before + size])

        def in_slots(x: Any, size: int = size) -> Any:
            return x[:size].expand(count, size, x.shape[1]).contiguous()

        used = torch.tensor([0, 0, size, 1], dtype=torch.int32, device="cuda")
        masked = gemmill.grouped_matmul(in_slots(a), experts, counts=used, **scaled(in_slots))
        assert torch.equal(bits(masked)[2], wanted[:size])
