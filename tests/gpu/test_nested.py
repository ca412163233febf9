"""Batches of several strides: views of attention, broadcasts, and parts where no kernel takes them whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.harness import kernel, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

NESTED: dict[str, Any] = {"scheduler__batching": "nested"}
CONFIGS: tuple[GemmConfig, ...] = (
    kernel("128x128x64", **NESTED),
    kernel("64x256x64", "pingpong", **NESTED),
    kernel("128x128x64", "pingpong", "1x2", b__major="mn", c__dtype="bf16", **NESTED),
    kernel("128x256x64", "cooperative", "2x1", a__major="mn", c__dtype="bf16", d__major="m", **NESTED),
    kernel("64x8x64", "pingpong", **NESTED),  # past shared memory, straight to D
    kernel("128x192x128", "cooperative", "2x1", ab="e4m3", d__dtype="bf16", **NESTED),
    kernel("128x128x32", ab="tf32", a__major="mn", d__dtype="f32", **NESTED),
    kernel("128x128x128", ab="s8", accumulator="s32", d__dtype="s32", **NESTED),
)
BATCHES = {(3, 5): 8, (2, 3, 4): 3}
"""Extents, and by how many elements rows of D are padded: odd ones threads store."""


@pytest.fixture(scope="module", autouse=True)
def compiled(registry: Registry) -> None:
    registry.warm(CONFIGS)


def view(batch: tuple[int, ...], rows: int, columns: int, dtype: Any, rows_inside: bool, pad: int = 0) -> Any:
    """Matrices of small whole numbers whose rows lie between the extents of the batch, as in (B, S, H, D): the first
    extent, rows, the other extents, columns; or columns there, and rows inside."""
    inner, between = (rows, columns) if rows_inside else (columns, rows)
    memory = torch.randint(-2, 3, (batch[0], between, *batch[1:], inner + pad), device="cuda").to(dtype)
    found = memory[..., :inner].movedim(1, -2)
    return found.mT if rows_inside else found


def nan_like(tensor: Any) -> Any:
    """A view of memory of its own with the layout of another, and all of that memory."""
    memory = tensor
    while memory._base is not None:
        memory = memory._base
    copy = torch.full_like(memory, float("nan") if memory.dtype.is_floating_point else 77)
    return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()), copy


def check_nested(config: GemmConfig, batch: tuple[int, ...], registry: Registry) -> None:
    """Run a kernel on matrices of small integers, and check every element, and that memory around D stays as it is."""
    m, n, k = config.tile.m + 16, 3 * config.tile.n - 16 if config.tile.n > 8 else 24, 2 * config.tile.k + 16
    dtypes = {"tf32": torch.float32, "e4m3": torch.float8_e4m3fn, "s8": torch.int8, "bf16": torch.bfloat16}
    a = view(batch, m, k, dtypes[config.a.dtype], rows_inside=config.a.major == "mn")
    b = view(batch, n, k, dtypes[config.b.dtype], rows_inside=config.b.major == "mn").mT
    kept = {"f32": torch.float32, "s32": torch.int32, "bf16": torch.bfloat16}[config.d.dtype]
    out, memory = nan_like(view(batch, m, n, kept, rows_inside=config.d.major == "m", pad=BATCHES[batch]))
    c = None
    if config.c is not None:
        c = view(batch, m, n, kept, rows_inside=config.c.major == "m")[:, :1].expand(*batch, m, n)
    untouched = torch.ones_like(memory, dtype=torch.bool)
    untouched.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(False)
    before = memory.clone()
    plan = gemmill.plan(a, b, out=out, c=c, tf32=config.a.dtype == "tf32", kernel=config, registry=registry)
    plan()
    exact = a.double() @ b.double() + (0 if c is None else c.double())
    assert torch.equal(out.double(), exact.to(kept).double())
    assert torch.equal(memory[untouched].view(torch.uint8), before[untouched].view(torch.uint8))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)
def test_every_element_of_every_matrix(config: GemmConfig, batch: tuple[int, ...], registry: Registry) -> None:
    """Beside memory that must stay as it is: of a padded D, and of other heads."""
    check_nested(config, batch, registry)


def bshd(*shape: int, dtype: Any = None) -> Any:
    """(B, S, H, D) as (B, H, S, D)."""
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16).transpose(1, 2)


def grouped_heads() -> tuple[Any, Any, dict[str, Any]]:
    q, k = bshd(3, 96, 12, 64), bshd(3, 80, 4, 64)
    return q.unflatten(1, (4, 3)), k.unsqueeze(2).mT, {}


def context() -> tuple[Any, Any, dict[str, Any]]:
    scores = torch.randint(-2, 3, (3, 4, 96, 80), device="cuda").bfloat16()
    return scores, bshd(3, 80, 4, 64), {"out": torch.empty(3, 96, 4, 64, device="cuda").bfloat16().transpose(1, 2)}


def masked() -> tuple[Any, Any, dict[str, Any]]:
    c = torch.randint(-2, 3, (3, 1, 96, 80), device="cuda").bfloat16().expand(3, 5, 96, 80)
    return bshd(3, 96, 5, 64), bshd(3, 80, 5, 64).mT, {"c": c}


WHOLE: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "scores": lambda: (bshd(3, 96, 5, 64), bshd(3, 80, 5, 64).mT, {}),
    "scores of grouped heads": grouped_heads,
    "context into (B, S, H, D)": context,
    "scores with a mask for all heads": masked,
    "one A for all of the inner extent": lambda: (bshd(3, 96, 1, 64), bshd(3, 80, 5, 64).mT, {}),
    "one B for all of the outer extent": lambda: (bshd(3, 96, 5, 64), bshd(1, 80, 5, 64).mT, {}),
    "the same bits": lambda: (bshd(3, 96, 5, 64), bshd(3, 80, 5, 64).mT, {"bits": "invariant"}),
    "a matrix of weights": lambda: (bshd(3, 96, 5, 64), torch.ones(64, 72, device="cuda").bfloat16(), {}),
}
IN_PARTS: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "f32": lambda: (bshd(3, 33, 5, 64, dtype=torch.float32), bshd(3, 17, 5, 64, dtype=torch.float32).mT, {}),
    "odd heads": lambda: (bshd(3, 33, 5, 63), bshd(3, 17, 5, 63).mT, {}),
    "four strides": lambda: (
        torch.randint(-2, 3, (2, 3, 3, 3, 40, 64), device="cuda").bfloat16()[:, :2, :2, :2],
        torch.randint(-2, 3, (2, 2, 2, 2, 64, 48), device="cuda").bfloat16(),
        {},
    ),
    "slices of K": lambda: (bshd(3, 96, 5, 64), bshd(3, 80, 5, 64).mT, {"bits": "k16/4"}),
    "a kernel of one stride": lambda: (bshd(3, 96, 5, 64), bshd(3, 80, 5, 64).mT, {"kernel": kernel("128x128x64")}),
}


@pytest.mark.parametrize("case", [*WHOLE, *IN_PARTS])
def test_matmul_as_torch_has_it(case: str, registry: Registry) -> None:
    a, b, options = {**WHOLE, **IN_PARTS}[case]()
    exact = a.double() @ b.double() + (options["c"].double() if "c" in options else 0)
    for _ in range(3):  # the plain way, then the warm one
        found = gemmill.matmul(a, b, registry=registry, **options)
        assert torch.equal(found.double(), exact.to(found.dtype).double())
    out = options.pop("out", torch.empty_like(found))
    plan = gemmill.plan(a, b, out=out, registry=registry, **options)
    assert plan.kernel is not None
    assert (plan.kernel.scheduler.batching == "nested") == (case in WHOLE)
    if case in IN_PARTS and plan.choice:
        assert "launches of" in plan.choice.reason


@pytest.mark.parametrize("odd", [False, True], ids=["whole", "in parts"])
def test_operands_of_an_epilogue_follow_the_batch(odd: bool, registry: Registry) -> None:
    a, b = bshd(3, 96, 5, 63 if odd else 64), bshd(3, 80, 5, 63 if odd else 64).mT
    row = torch.randint(-2, 3, (3, 5, 96), device="cuda").bfloat16()
    matrix = torch.randint(-2, 3, (3, 5, 96, 80), device="cuda").bfloat16()
    each = torch.randint(-2, 3, (3, 5), device="cuda").bfloat16()
    column = torch.randint(-2, 3, (80,), device="cuda").bfloat16()
    found = gemmill.matmul(
        a,
        b,
        epilogue="d = acc + row[m] + column[n] + each[batch] + matrix[m, n]",
        out_dtype=torch.float32,
        registry=registry,
        row=row,
        column=column,
        each=each,
        matrix=matrix,
    )
    exact = a.double() @ b.double() + row.double()[..., None] + column.double() + matrix.double()
    assert torch.equal(found.double(), exact + each.double()[..., None, None])


def test_scales_of_blocks_follow_the_batch(registry: Registry) -> None:
    a, b = bshd(2, 96, 3, 256, dtype=torch.float8_e4m3fn), bshd(2, 128, 3, 256, dtype=torch.float8_e4m3fn).mT
    a_scale = 2.0 ** torch.randint(-2, 3, (2, 3, 96, 2), device="cuda").float()
    b_scale = 2.0 ** torch.randint(-2, 3, (2, 3, 2, 1), device="cuda").float()
    wide = a.double() * a_scale.double().repeat_interleave(128, -1)
    exact = wide @ (b.double() * b_scale.double().repeat_interleave(128, -2))
    found = gemmill.matmul(a, b, a_scale=a_scale, b_scale=b_scale, registry=registry)
    assert torch.equal(found.double(), exact.bfloat16().double())
