"""Groups of rows with narrow weights: kernels with groups along N, each group held against the kernel of one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from tests.gpu.harness import Guarded, guarded, kernel, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import canonical
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import OperandSet, as_called, factors, make_operands, plan_options
from gemmill.profiler.measure.verify import reference
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.units import problem_of
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

BF16: dict[str, Any] = {"b__dtype": "bf16", "d__dtype": "bf16", "d__major": "m"}
F16: dict[str, Any] = {"b__dtype": "f16", "d__dtype": "f16", "d__major": "m"}
E4M3: dict[str, Any] = {
    "a__dtype": "s4",
    "a__scale": "1x128",
    "b__dtype": "e4m3",
    "promote": 4,
    "d__dtype": "bf16",
    "d__major": "m",
}
AT_OFFSETS: dict[str, Any] = {"scheduler__batching": "ngrouped"}
IN_SLOTS: dict[str, Any] = {"scheduler__batching": "nmasked"}

CONFIGS: tuple[GemmConfig, ...] = (
    kernel("64x16x128", a__dtype="u4", a__scale="1x128z", **BF16, **AT_OFFSETS),
    kernel("64x8x128", "cooperative", "2x1", a__dtype="s4", a__scale="1x32", **F16, **AT_OFFSETS),
    kernel("64x32x256", a__dtype="u4", a__scale="1x64z", **BF16, **AT_OFFSETS),
    kernel("128x64x128", "cooperative", "2x1", a__dtype="u4", a__scale="1x32z", **BF16, **AT_OFFSETS),
    kernel("128x128x64", "cooperative", "1x2", a__dtype="s8", **F16, **AT_OFFSETS),
    kernel("128x256x64", "cooperative", "2x1", a__dtype="u4", a__scale="1x128", **BF16, **AT_OFFSETS),
    kernel("64x128x64", "pingpong", a__dtype="s4", a__scale="1x32", **F16, **AT_OFFSETS),
    kernel("64x24x128", a__dtype="e4m3", c__dtype="bf16", c__major="m", **BF16, **AT_OFFSETS),
    kernel("192x64x64", a__dtype="s8", a__scale="1x128", **(BF16 | {"d__dtype": "f32"}), **AT_OFFSETS),
    kernel("64x16x256", a__dtype="e2m1", a__scale="1x32e8", **BF16, **AT_OFFSETS),
    kernel("256x16x64", a__dtype="u4", a__scale="1x128z", **BF16, **AT_OFFSETS),
    kernel("256x8x128", a__dtype="u4", a__scale="1x128z", **BF16, **AT_OFFSETS),
    kernel("256x8x128", a__dtype="e2m1", a__scale="1x32e8", **BF16, **IN_SLOTS),
    kernel("64x8x128", **E4M3, **AT_OFFSETS),
    kernel("128x112x128", **E4M3, **AT_OFFSETS),
    kernel("256x16x128", **E4M3, **AT_OFFSETS),
    kernel("64x16x128", **E4M3, **IN_SLOTS),
    kernel("128x64x128", **E4M3, **IN_SLOTS),
    kernel("256x16x64", a__dtype="e2m1", a__scale="1x32e8", **BF16, **IN_SLOTS),
    kernel("128x128x64", a__dtype="e2m1", a__scale="1x32e8", **F16, **IN_SLOTS),
    kernel("64x16x128", "cooperative", "2x1", a__dtype="s4", a__scale="1x128", **BF16, **IN_SLOTS),
    kernel("128x128x64", a__dtype="u4", a__scale="1x64", **F16, **IN_SLOTS),
    kernel("128x64x64", "pingpong", "1x2", a__dtype="e4m3", b__major="mn", **BF16, **IN_SLOTS),
)

SIZES = {
    "one": [200],
    "ragged": [1, 0, 64, 7, 63, 65, 128, 0, 0, 129, 16, 15, 17, 256, 0],
    "small": [i % 5 for i in range(70)],
    "many": [0] * 97 + [150] + [0] * 150 + [3] + [0] * 64,
    "empty": [0, 0, 0],
}


def gathered(tile: str, schedule: str = "cooperative", cluster: str = "1x1", **fields: Any) -> GemmConfig:
    """A kernel for groups whose rows an index names."""
    return kernel(tile, schedule, cluster, scheduler__rows="gathered", **fields, **AT_OFFSETS)


GATHERED = (
    gathered("64x8x256", a__dtype="e2m1", a__scale="1x32e8", **BF16),
    gathered("64x16x128", a__dtype="u4", a__scale="1x128z", **F16),
    gathered("64x24x128", a__dtype="e4m3", c__dtype="bf16", c__major="m", **BF16),
    gathered("256x16x64", a__dtype="s4", a__scale="1x32", **BF16),
    gathered("256x8x128", a__dtype="e2m1", a__scale="1x32e8", **BF16),
    gathered("64x128x64", "pingpong", a__dtype="s4", a__scale="1x32", **F16),
    gathered("128x64x128", a__dtype="u8", **BF16),
    gathered("128x128x64", "cooperative", "1x2", a__dtype="s8", a__scale="1x128", **F16),
    gathered("128x192x64", a__dtype="u4", a__scale="1x64", **(BF16 | {"d__dtype": "f32"})),
    gathered("128x256x64", a__dtype="u4", a__scale="1x32z", **BF16),
    gathered("128x256x64", a__dtype="e2m1", a__scale="1x32e8", **BF16),
    gathered("64x16x128", **E4M3),
    gathered("128x64x128", **E4M3),
)


def one_matrix(config: GemmConfig) -> GemmConfig:
    """The same kernel for one matrix."""
    return replace(config, scheduler=replace(config.scheduler, batching="strided"))


def stored(config: GemmConfig) -> GemmConfig:
    """The same kernel for rows in order."""
    return replace(config, scheduler=replace(config.scheduler, rows="stored"))


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm((*CONFIGS, *map(one_matrix, CONFIGS), *GATHERED, *map(stored, GATHERED)))
    return shared


def drawn(config: GemmConfig, sizes: Sequence[int], rest: int, n: int, k: int) -> tuple[GemmProblem, OperandSet]:
    """Operands of weights (n, k) for each group; ``rest`` rows are in no group, or beyond the fullest slot."""
    total = max(sizes, default=0) if config.scheduler.batching == "nmasked" else sum(sizes)
    shape = Shape(total + rest, n, k, 1, keywords=(("groups", len(sizes)),))
    problem = problem_of(config, shape).but(a_align=16, b_align=16, c_align=16, d_align=16)
    (operands,) = make_operands(problem, 0, sets=1, sizes=sizes)
    return problem, operands


def out_for(problem: GemmProblem, d_align: int = 16) -> Guarded:
    """Guarded memory for D as calls take it."""
    batch = problem.batch if problem.batching == "nmasked" else None
    return guarded(problem.n, problem.m, problem.d_dtype, batch=batch, align=d_align)


def run(
    config: GemmConfig, sizes: Sequence[int], rest: int, n: int, k: int, registry: Registry, d_align: int = 16
) -> None:
    """Launch, hold each group against the kernel of one matrix, bit by bit, and all of D against float64."""
    problem, operands = drawn(config, sizes, rest, n, k)
    d = out_for(problem, d_align)
    _, (o,) = as_called(problem, [operands])
    held: dict[str, Any] = {"b_dtype": config.a.dtype} if config.a.type.bits < 8 else {}
    before = d.buffer.clone()
    options: dict[str, Any] = {"c": o.c, "beta": 1.0} if o.c is not None else {}
    scales: dict[str, Any] = {"b_scale": o.b_scale, "b_zero": o.b_zero}
    gemmill.grouped_matmul(
        o.a, o.b, out=d.tensor, registry=registry, kernel=config, **o.groups, **held, **scales, **options
    )
    torch.cuda.synchronize()
    ends = [*accumulate(sizes)]
    for i, size in enumerate(sizes):
        at = (i, slice(0, size)) if "counts" in o.groups else (slice(ends[i] - size, ends[i]),)
        found = d.tensor[at]
        of_group: dict[str, Any] = {name: x[i] if x.dim() == 3 else x for name, x in scales.items() if x is not None}
        c: dict[str, Any] = {} if o.c is None else {"c": o.c[at], "beta": 1.0}
        wanted = torch.zeros_like(found)  # initcheck does not follow TMA's stores
        if size:
            gemmill.matmul(
                o.a[at], o.b[i], out=wanted, registry=registry, kernel=one_matrix(config), **held, **of_group, **c
            )
        assert torch.equal(found, wanted), f"group {i} of {size} rows has other bits than one matrix"
    found = reference(problem, operands, *factors(problem)).compare(d.tensor.mT)
    assert found.passed, found.says
    for buffer in (written := (d.buffer.clone(), before)):
        typed = buffer.view(d.tensor.dtype).as_strided(d.tensor.shape, d.tensor.stride(), d.tensor.storage_offset())
        for i, size in enumerate(sizes):
            typed[(i, slice(0, size)) if "counts" in o.groups else (slice(ends[i] - size, ends[i]),)] = 0
    assert torch.equal(*written), "memory around the groups of D was written"


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)
def test_groups_have_the_bits_of_one_matrix(config: GemmConfig, sizes: str, registry: Registry) -> None:
    for n, k in ((264, 200), (203, 328), (64, 136)):
        k = -(-k // 32) * 32 if config.a.dtype == "e2m1" else k
        for rest in (37, 0):
            if sum(SIZES[sizes]) + rest:
                run(config, SIZES[sizes], rest, n, k, registry)


def bits(tensor: Any) -> Any:
    """Elements as integers, of which NaNs are equal too."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def call(config: GemmConfig, o: OperandSet, registry: Registry, x: Any, out: Any, rows: Any = None) -> None:
    """Multiply rows of ``x`` by the weights of operands."""
    held: dict[str, Any] = {"b_dtype": config.a.dtype} if config.a.type.bits < 8 else {}
    options: dict[str, Any] = {"c": o.c, "beta": 1.0} if o.c is not None else {}
    scales: dict[str, Any] = {"b_scale": o.b_scale, "b_zero": o.b_zero}
    offsets = o.groups["offsets"]
    gemmill.grouped_matmul(
        x, o.b, offsets, rows=rows, out=out, registry=registry, kernel=config, **held, **scales, **options
    )


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("config", GATHERED, ids=kernel_name)
def test_gathered_rows_have_the_bits_of_a_permuted_copy(config: GemmConfig, sizes: str, registry: Registry) -> None:
    """With duplicates, entries outside of x, which count as its last row, and int64 indices."""
    tokens, outside = 90, (90, -1, 1 << 30, -(1 << 31))
    for n, k in ((264, 200), (203, 328), (64, 136)):
        k = -(-k // 32) * 32 if config.a.dtype == "e2m1" else k
        problem, operands = drawn(config, SIZES[sizes], 5, n, k)
        _, (o,) = as_called(problem, [operands])
        x, m = guarded(tokens, k, config.b.dtype), problem.n
        x.tensor.copy_(torch.randn(tokens, k))
        index = torch.randint(0, tokens, (m,), device="cuda")
        index[::7] = torch.tensor(outside, device="cuda").repeat(m)[: len(index[::7])]
        inside = index.clamp(max=tokens - 1).where(index >= 0, tokens - 1)
        copy = guarded(m, k, config.b.dtype).tensor  # whose rows are aligned
        bits(copy).copy_(bits(x.tensor)[inside])
        d = out_for(problem)
        wanted = torch.empty_strided(d.tensor.shape, d.tensor.stride(), dtype=o.d.dtype, device="cuda").fill_(torch.nan)
        call(stored(config), o, registry, copy, wanted)
        before = x.buffer.clone()
        for rows in (index, index.int(), torch.stack((index, index * 0), 1).int()[:, 0]):
            d.tensor.fill_(torch.nan)
            call(config, o, registry, x.tensor, d.tensor, rows)
            torch.cuda.synchronize()
            assert torch.equal(bits(d.tensor), bits(wanted))
            assert d.intact(), "memory around D was written"
        assert torch.equal(x.buffer, before)


@pytest.mark.parametrize("config", [GATHERED[0], GATHERED[1], GATHERED[4], GATHERED[6], GATHERED[8]], ids=kernel_name)
def test_many_launches_of_gathered_rows_have_the_same_bits(config: GemmConfig, registry: Registry) -> None:
    """MMAs read through another proxy than copies write; every launch reads what its own copies wrote."""
    sizes, tokens, n, k = [0, 1, 900, 17, 64, 300, 129, 0, 511, 80, 256, 33, 700, 5, 128, 172], 700, 768, 2048
    problem, operands = drawn(config, sizes, 0, n, k)
    _, (o,) = as_called(problem, [operands])
    x = torch.empty(tokens, k, device="cuda", dtype=o.a.dtype)
    index = torch.zeros(problem.n, dtype=torch.int32, device="cuda")
    found, wanted = torch.empty_like(o.d), torch.empty_like(o.d)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(100):
        x.normal_()
        index.random_(0, tokens)
        call(config, o, registry, x, found, index)
        call(stored(config), o, registry, x[index.long()], wanted)
        wrong += (bits(found) != bits(wanted)).sum()
    assert wrong.item() == 0


@pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)
def test_a_d_that_tma_cannot_store(config: GemmConfig, registry: Registry) -> None:
    run(config, [70, 33, 0, 5, 90, 64], 3, 203, 96, registry, d_align=DTYPES[config.d.dtype].bytes)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[5], CONFIGS[6], CONFIGS[9]], ids=kernel_name)
def test_wrong_tables_reach_nothing_outside(config: GemmConfig, registry: Registry) -> None:
    problem, operands = drawn(config, [100, 50, 20], 0, 200, 96)
    _, (o,) = as_called(problem, [operands])
    ((kind, table),) = o.groups.items()
    scales: dict[str, Any] = {"b_scale": o.b_scale, "b_zero": o.b_zero, "b_dtype": config.a.dtype}
    for values in ([400, 1 << 30, 500], [-1, 333, 20], [-(1 << 31), (1 << 31) - 1, 0]):
        d = out_for(problem)
        before = d.buffer.clone()
        table.copy_(torch.tensor(values, dtype=torch.int32))
        gemmill.grouped_matmul(o.a, o.b, out=d.tensor, registry=registry, kernel=config, **{kind: table}, **scales)
        torch.cuda.synchronize()
        for buffer in (d.buffer, before):
            typed = buffer.view(d.tensor.dtype)
            typed.as_strided(d.tensor.shape, d.tensor.stride(), d.tensor.storage_offset()).fill_(0)
        assert torch.equal(d.buffer, before), "memory around D was written"


@pytest.mark.parametrize(
    "text",
    [
        "300x264x256 bf16*u4 tn grouped=6 b_scale=1x128z epilogue='d = silu(acc + bias[n]) * s[batch] + r[m, n]'",
        "300x272x256 bf16*u4 tn grouped=6 b_scale=1x64 rows=gathered epilogue='d = silu(gate8 + bias[n]) * up8'",
        "300x264x256 f16*s8 tn grouped=6 epilogue='d = acc * x[m] * b_scale[n]; top[m] = max(acc); cols[n] = sum(acc)'",
        "300x264x256 e4m3*s4 tn grouped=6 b_scale=1x128 epilogue='d = silu(acc * a_scale[m] + bias[n]) * s[batch]'",
        "90x264x256 bf16*s4 tn masked=6 b_scale=1x32 expected_rows=40 epilogue='d = relu(acc * x[m] + bias[n])'",
    ],
)
def test_expressions_of_selected_kernels(text: str) -> None:
    problem = GemmProblem.from_text(text).with_narrow_a
    sizes = [40, 0, 90, 7, 64, 33] if problem.batching == "nmasked" else [99, 0, 120, 1, 64, 16]
    (operands,) = make_operands(problem, 0, sets=1, sizes=sizes)
    expected = reference(problem, operands, *factors(problem))
    called, (o,) = as_called(problem, [operands])
    alpha, beta = factors(problem)
    gemmill.plan(alpha=alpha, beta=beta, **(plan_options(called, o) | o.tensors()))()
    torch.cuda.synchronize()
    found = expected.compare(operands.d, operands.arguments)
    assert found.passed, found.says


def test_gates_have_the_bits_of_other_tiles(registry: Registry) -> None:
    groups, n, k, rows = 8, 416, 512, 130
    x = torch.randint(-2, 3, (rows, k), device="cuda").bfloat16() / 16
    packed = torch.randint(0, 256, (groups, n, k // 2), device="cuda", dtype=torch.uint8)
    scale = 2.0 ** torch.randint(-6, -2, (groups, k // 32, n), device="cuda").bfloat16()  # so that all sums are exact
    offsets = torch.tensor([1, 1, 18, 50, 66, 67, 82, rows], device="cuda", dtype=torch.int32)
    found = []
    for tile in ("64x16x128", "128x32x128", "256x16x64"):
        gated = canonical("d = silu(gate8.m) * up8.m")
        config = kernel(tile, a__dtype="u4", a__scale="1x32", epilogue=gated, **BF16, **AT_OFFSETS)
        keywords: dict[str, Any] = {"epilogue": "d = silu(gate8) * up8", "b_scale": scale, "b_dtype": "u4"}
        found.append(gemmill.grouped_matmul(x, packed.mT, offsets, kernel=config, registry=registry, **keywords))
        assert found[-1].shape == (rows, n // 2)
        assert torch.equal(found[-1], found[0])
    assert found[0].isfinite().all()
    assert found[0].count_nonzero() > 0


def test_a_call_by_torch_ops_and_by_a_graph() -> None:
    groups, n, k, rows = 16, 512, 512, 48
    x = torch.randint(-2, 3, (rows, k), device="cuda").bfloat16()
    packed = torch.randint(0, 256, (groups, n, k // 2), device="cuda", dtype=torch.uint8)
    scale = 2.0 ** torch.randint(-2, 2, (groups, k // 32, n), device="cuda").bfloat16()  # so that all sums are exact
    offsets = torch.arange(3, rows + 1, 3, device="cuda")
    keywords: dict[str, Any] = {"b_scale": scale, "b_dtype": "u4"}
    d = gemmill.grouped_matmul(x, packed.mT, offsets, **keywords)
    assert torch.equal(d, torch.ops.gemmill.grouped_mm(x, packed.mT, offsets, None, None, scale, b_dtype="u4"))
    again = torch.empty_like(d)
    with gemmill.plan(x, packed.mT, out=again, offsets=offsets, **keywords) as launch:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        graph.replay()
        assert torch.equal(again, d)
        offsets.fill_(rows)  # all rows are of the first group
        graph.replay()
        assert torch.equal(again, gemmill.matmul(x, packed[0].mT, b_scale=scale[0], b_dtype="u4"))
