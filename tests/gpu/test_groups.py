"""Grouped GEMMs: groups of rows at offsets, in slots with counts, and along K; arrays of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import pytest
from tests.gpu.groups import (
    ARRAY,
    FP8,
    GROUPED,
    KGROUPED,
    MASKED,
    Case,
    along_k,
    check_array,
    ends,
    make_case,
    ranges_of,
    slots,
    stacked,
)
from tests.gpu.harness import guarded, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.epilogues.parse import canonical
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm((*GROUPED, *MASKED, *KGROUPED, *ARRAY, *FP8))
    return shared


SIZES = {
    "one": [200],
    "ragged": [1, 0, 64, 63, 65, 128, 0, 0, 129, 7, 256, 300, 0],
    "small": [i % 5 for i in range(70)],
    "many": [0] * 97 + [150] + [0] * 150 + [3] + [0] * 64,
    "empty": [0, 0, 0],
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("config", GROUPED, ids=kernel_name)
def test_groups_of_rows(config: GemmConfig, sizes: str, registry: Registry) -> None:
    values = ends(*SIZES[sizes])
    for n, k in ((264, 200), (136, 65), (257, 64)):
        # Rows beyond the last group, or none.
        for rest in (37, 0):
            if values[-1] + rest:
                make_case(config, values, values[-1] + rest, 0, n, k).run(registry)


@pytest.mark.parametrize("config", MASKED, ids=kernel_name)
def test_slots(config: GemmConfig, registry: Registry) -> None:
    for capacity, counts in (
        (200, [200, 0, 1, 64, 65, 129, 199, 128]),
        (64, [i * 7 % 65 for i in range(70)]),
        (130, [0, 0, 0]),
        (130, [131, -5, 1 << 30, -(1 << 31), 17]),
    ):
        for n, k in ((264, 200), (129, 72)):
            make_case(config, counts, capacity, 0, n, k).run(registry)


@pytest.mark.parametrize("config", KGROUPED, ids=kernel_name)
def test_groups_along_k(config: GemmConfig, registry: Registry) -> None:
    for sizes in ([1, 0, 64, 63, 65, 128, 0, 129, 7, 300, 0], [0, 0], [200], [17] * 40):
        for m, n in ((264, 136), (129, 257)):
            for rest in (21, 0):
                values = ends(*sizes)
                make_case(config, values, values[-1] + rest, m, n, 0).run(registry)


ADDING = [x for x in KGROUPED if x.c and (x.d.dtype, x.d.major, x.scheduler.rows) == ("f32", "n", "stored")]


@pytest.mark.parametrize("config", ADDING, ids=kernel_name)
@pytest.mark.parametrize("n", [136, 129])
def test_sums_added_to_d_have_the_bits_of_those_added_to_a_copy(config: GemmConfig, n: int, registry: Registry) -> None:
    values = ends(1, 0, 64, 130, 7)
    case = make_case(config, values, values[-1] + 21, 264, n, 0, exact=False)
    assert case.c is not None
    for alpha, beta in ((1.0, 1.0), (0.3, 1.0), (1.0, 0.5)):
        keys: dict[str, Any] = {"alpha": alpha, "beta": beta, "registry": registry, "kernel": config}
        operands, d = (case.a.tensor, case.b.tensor, case.groups), case.d.tensor
        wanted = gemmill.grouped_matmul(*operands, c=case.c.tensor, out=d, **keys).clone()
        d.copy_(case.c.tensor)
        gemmill.grouped_matmul(*operands, c=d, out=d, **keys)
        assert torch.equal(d, wanted), (alpha, beta)


@pytest.mark.parametrize("config", [*GROUPED, *MASKED, *KGROUPED], ids=kernel_name)
def test_a_d_that_tma_cannot_store(config: GemmConfig, registry: Registry) -> None:
    values = [200, 0, 1, 64, 65] if config.scheduler.batching == "masked" else ends(70, 33, 0, 5, 90, 64)
    extent = 200 if config.scheduler.batching == "masked" else values[-1] + 3
    make_case(config, values, extent, 150, 203, 96, d_align=config.d.type.bytes).run(registry)


@pytest.mark.parametrize("config", [GROUPED[0], GROUPED[2], KGROUPED[0], KGROUPED[3]], ids=kernel_name)
def test_neighbours_do_not_mix(config: GemmConfig, registry: Registry) -> None:
    values = ends(70, 33, 0, 5, 90, 64)
    case = make_case(config, values, values[-1], 150, 200, 96)
    parts = list(case.parts())
    for poisoned in (1, 4):
        for operand in parts[poisoned][:2]:
            operand.fill_(float("nan"))
    gemmill.grouped_matmul(
        case.a.tensor, case.b.tensor, case.groups, out=case.d.tensor, registry=registry, kernel=config
    )
    for i, (a, b, _, d) in enumerate(parts):
        if i in (1, 4):
            assert d.isnan().all()
        else:
            assert torch.equal(d, (a.float() @ b.float()).to(d.dtype)), f"group {i}"


@pytest.mark.parametrize("config", [GROUPED[0], GROUPED[2], GROUPED[3], KGROUPED[1]], ids=kernel_name)
def test_wrong_offsets_reach_nothing_outside(config: GemmConfig, registry: Registry) -> None:
    extent = 333
    for values in (
        [400, 500, 1 << 30],
        [-1, -100, 333, 200, 1000],
        [-(1 << 31), (1 << 31) - 1, 0, 5],
        [100, 50, 20, 333],
    ):
        case = make_case(config, values, extent, 140, 200, 96)
        if config.scheduler.batching == "kgrouped" or not overlaps(case.ranges):
            case.run(registry)
            continue
        before = case.d.buffer.clone()
        gemmill.grouped_matmul(
            case.a.tensor, case.b.tensor, case.groups, out=case.d.tensor, registry=registry, kernel=config
        )
        torch.cuda.synchronize()
        for buffer in (case.d.buffer, before):
            d = case.d.tensor
            buffer.view(d.dtype).as_strided(d.shape, d.stride(), d.storage_offset()).fill_(0)
        assert torch.equal(case.d.buffer, before), "memory around D was written"


def overlaps(ranges: Sequence[tuple[int, int]]) -> bool:
    rows = [row for begin, end in ranges for row in range(begin, end)]
    return len(rows) != len(set(rows))


def expert_sizes(tokens: int, experts: int, seed: int) -> list[int]:
    """Uneven tokens of experts, an eighth of whom have none."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(experts, generator=generator) ** 3
    weights[torch.randperm(experts, generator=generator)[: experts // 8]] = 0
    cuts = (weights.cumsum(0) / weights.sum() * tokens).round().int().tolist()
    return [end - begin for begin, end in zip([0, *cuts[:-1]], cuts, strict=True)]


MOE = [(128, 8192, 2048, 7168), (256, 4096, 7168, 2048), (256, 32768, 4096, 2048)]


@pytest.mark.parametrize("exact", [True, False], ids=["integers", "normal"])
@pytest.mark.parametrize(("experts", "tokens", "n", "k"), MOE)
def test_mixtures_of_experts(experts: int, tokens: int, n: int, k: int, exact: bool, registry: Registry) -> None:
    sizes = expert_sizes(tokens, experts, tokens + experts)
    assert 0 in sizes
    case = make_case(GROUPED[3 if tokens > 8192 else 1], ends(*sizes), tokens, 0, n, k, exact=exact, pad=0)
    case.run(registry)


@pytest.mark.parametrize("exact", [True, False], ids=["integers", "normal"])
def test_decoding_and_gradients_of_experts(exact: bool, registry: Registry) -> None:
    counts = [i * i % 129 for i in range(256)]
    make_case(MASKED[0], counts, 128, 0, 2048, 4096, exact=exact).run(registry)
    sizes = expert_sizes(16384, 128, 7)
    make_case(KGROUPED[2], ends(*sizes), 16384, 1024, 2048, 0, exact=exact).run(registry)


@pytest.mark.parametrize("config", FP8, ids=kernel_name)
@pytest.mark.parametrize("sizes", [[70, 0, 33, 128, 1, 200, 64], [0] * 40 + [65, 3] * 30], ids=["few", "many"])
def test_block_scaled_experts(config: GemmConfig, sizes: list[int], registry: Registry) -> None:
    n, k, count = 264, 400, len(sizes)
    masked = config.scheduler.batching == "masked"
    rows = (count, 208) if masked else (sum(sizes) + 9,)
    values = sizes if masked else ends(*sizes)

    def integers(*shape: int) -> Any:
        return torch.randint(-2, 3, shape, device="cuda").to(torch.float8_e4m3fn)

    def scales(*shape: int) -> Any:
        return torch.randint(-2, 3, shape, device="cuda").float().exp2()

    a, b = integers(*rows, k), integers(count, n, k).mT
    a_scale, b_scale = scales(*rows, 4), scales(count, 4, 3)
    out = guarded(rows[-1], n, "bf16", batch=count if masked else None)
    gemmill.grouped_matmul(
        a,
        b,
        out=out.tensor,
        a_scale=a_scale,
        b_scale=b_scale,
        registry=registry,
        kernel=config,
        **{"counts" if masked else "offsets": torch.tensor(values, dtype=torch.int32, device="cuda")},
    )
    torch.cuda.synchronize()
    left = a.double() * a_scale.double().repeat_interleave(128, -1)[..., :k]
    right = b.double() * b_scale.double().repeat_interleave(128, -2)[:, :k].repeat_interleave(128, -1)[..., :n]
    wanted = torch.full_like(out.tensor, float("nan"))
    for i, (begin, end) in enumerate(ranges_of("masked" if masked else "grouped", values, rows[-1])):
        part = (i, slice(begin, end)) if masked else slice(begin, end)
        wanted[part] = (left[part] @ right[i]).float().to(wanted.dtype)
    assert torch.equal(out.tensor.nan_to_num(1e30), wanted.nan_to_num(1e30))
    assert out.intact()


def test_a_graph_replays_with_other_groups(registry: Registry) -> None:
    values = ends(70, 33, 0, 5, 90, 64)
    case = make_case(GROUPED[0], values, values[-1], 0, 200, 96)
    launch = gemmill.plan(
        case.a.tensor, case.b.tensor, offsets=case.groups, out=case.d.tensor, registry=registry, kernel=GROUPED[0]
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for sizes in ([70, 33, 0, 5, 90, 64], [0, 0, 0, 0, 0, 262], [10, 20, 30, 40, 50, 112]):
        case.groups.copy_(torch.tensor(ends(*sizes), dtype=torch.int32))
        case.d.tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        Case(
            case.config, case.a, case.b, None, case.d, case.groups, ranges_of("grouped", ends(*sizes), 262), True
        ).check()


def test_a_plan_takes_other_tensors(registry: Registry) -> None:
    first, second = (make_case(c, [40, 80, 99], 120, 0, 200, 96) for c in (GROUPED[0], GROUPED[0]))
    with gemmill.plan(
        first.a.tensor, first.b.tensor, offsets=first.groups, out=first.d.tensor, registry=registry, kernel=GROUPED[0]
    ) as launch:
        launch()
        other = torch.tensor([0, 50, 120], dtype=torch.int32, device="cuda")
        launch.rebind(a=second.a.tensor, b=second.b.tensor, offsets=other, out=second.d.tensor)
        launch()
        torch.cuda.synchronize()
    first.check()
    Case(GROUPED[0], second.a, second.b, None, second.d, other, ranges_of("grouped", [0, 50, 120], 120), True).check()


@pytest.mark.parametrize("config", ARRAY, ids=kernel_name)
def test_an_array_of_matrices(config: GemmConfig, registry: Registry) -> None:
    for count, m, n, k in ((7, 200, 136, 136), (40, 64, 72, 64), (3, 129, 257, 65)):
        check_array(config, count, m, n, k, registry)
    if (config.a.major, config.b.major) == ("k", "k"):  # operands without elements are bound K-major
        check_array(config, 2, 300, 520, 0, registry)


def alone(rows: int, columns: int) -> Any:
    """A matrix in a segment of its own, and nothing mapped before or behind it."""
    torch.cuda.empty_cache()
    five = [torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(5)]
    middle = sorted(five, key=lambda tensor: tensor.data_ptr())[2]
    del five
    torch.cuda.empty_cache()
    return middle


@pytest.mark.parametrize("config", [GROUPED[0], GROUPED[3], *KGROUPED[:3]], ids=kernel_name)
def test_descriptors_that_begin_before_an_operand_reach_nothing_there(config: GemmConfig, registry: Registry) -> None:
    values = torch.tensor([5, 16320, 16384], dtype=torch.int32, device="cuda")
    if config.scheduler.batching == "kgrouped":
        for m, n in ((2048, 520), (520, 2048), (1032, 1096)):
            a, b = alone(16384, 2048).fill_(1)[:, :m].T, alone(16384, 2048).fill_(1)[:, :n]
            out = gemmill.grouped_matmul(a, b, values, out_dtype=config.d.dtype, registry=registry, kernel=config)
            torch.cuda.synchronize()
            for i, wanted in enumerate((5, 16315, 64)):
                assert (out[i] == torch.tensor(wanted).to(out.dtype)).all()
    else:
        a, b = alone(16384, 2048).fill_(1)[:, :64], torch.ones(3, 2048, 64, device="cuda", dtype=torch.bfloat16)
        for n in (2048, 520):
            out = alone(16384, 2048).fill_(float("nan"))[:, :n]
            gemmill.grouped_matmul(a, b[:, :n].mT, values, out=out, registry=registry, kernel=config)
            torch.cuda.synchronize()
            assert (out == 64).all()


EXPRESSION = (
    "d = relu(alpha * acc * s[m] + bias[n]) * w[batch] + r[m, n]; aux = acc; top[n] = max(abs(d)); per_row[m] = sum(d)"
)
FUSED: dict[str, Any] = {"d__dtype": "f32", "epilogue": canonical(EXPRESSION)}


@pytest.mark.parametrize(
    "config",
    [
        stacked("128x128x64", **FUSED),
        stacked("64x96x64", "pingpong", **FUSED),
        stacked("192x64x64", cluster="1x2", **FUSED),
        slots("128x128x64", **FUSED),
        slots("64x96x64", "pingpong", cluster="2x1", **FUSED),  # a CTA of the last pair has no columns
        along_k("128x128x64", **FUSED),
        along_k("64x192x64", "pingpong", **FUSED),
    ],
    ids=kernel_name,
)
def test_expressions_know_their_group(config: GemmConfig, registry: Registry) -> None:
    """Operands of a group's rows, columns and matrix; nothing outside of a group is read for it, reduced or written."""
    batching, n, k = config.scheduler.batching, 200, 72
    ranges = {
        "grouped": ((0, 30), (30, 30), (30, 191), (191, 192)),
        "masked": ((0, 7), (0, 0), (0, 150), (0, 1)),
        "kgrouped": ((0, 40), (40, 40), (40, 71), (71, 72)),
    }[batching]
    groups = len(ranges)
    rows = {"grouped": 200, "masked": 150, "kgrouped": 136}[batching]
    a, b, d = {
        "grouped": ((rows, k), (groups, k, n), (rows, n)),
        "masked": ((groups, rows, k), (groups, k, n), (groups, rows, n)),
        "kgrouped": ((rows, k), (k, n), (groups, rows, n)),
    }[batching]

    def integers(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randint(-2, 3, shape, device="cuda").to(dtype)

    x = {"s": integers(*d[:-1]), "bias": integers(groups, n), "w": integers(groups), "r": integers(*d)}
    x |= {"aux": torch.full(d, nan, device="cuda"), "top": torch.zeros(groups, n, device="cuda")}
    x["per_row"] = torch.ones(d[:-1], device="cuda")
    left, right = integers(*a, dtype=torch.bfloat16), integers(*b, dtype=torch.bfloat16)
    if batching == "kgrouped":
        left = left.T.contiguous().T
    else:
        right = right.mT.contiguous().mT
    out = torch.full(d, nan, device="cuda")
    array = torch.tensor([end for _, end in ranges], dtype=torch.int32, device="cuda")
    kind = "counts" if batching == "masked" else "offsets"
    gemmill.grouped_matmul(
        left, right, out=out, alpha=2, epilogue=EXPRESSION, kernel=config, registry=registry, **{kind: array}, **x
    )
    wanted, aux = torch.full_like(out, nan), torch.full_like(out, nan)
    top, sums = torch.full_like(x["top"], -inf), torch.zeros_like(x["per_row"])
    for i, (begin, end) in enumerate(ranges):
        part = slice(begin, end)
        match batching:
            case "grouped":
                at: Any = part
                acc = left[part].float() @ right[i].float()
            case "masked":
                at = i, part
                acc = left[at].float() @ right[i].float()
            case _:
                at = i
                acc = left[:, part].float() @ right[part].float()
        value = torch.relu(2 * acc * x["s"][at][:, None] + x["bias"][i]) * x["w"][i] + x["r"][at]
        wanted[at], aux[at], sums[at] = value, acc, value.sum(1)
        if len(value):
            top[i] = value.abs().amax(0)
    for found, expected in ((out, wanted), (x["aux"], aux), (x["top"], top), (x["per_row"], sums)):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_gated_experts_are_those_of_plain_calls() -> None:
    def integers(*shape: int) -> Any:
        return torch.randint(-2, 3, shape, device="cuda").bfloat16()

    offsets = torch.tensor([30, 30, 100], dtype=torch.int32, device="cuda")
    a, weights, bias = integers(100, 64), integers(3, 160, 64).mT, integers(3, 80)
    text = "d = silu(gate) * up + bias[n]"
    found = gemmill.grouped_matmul(a, weights, offsets, epilogue=text, bias=bias)
    assert found.shape == (100, 80)
    for i, rows in enumerate([slice(0, 30), slice(30, 30), slice(30, 100)]):
        assert torch.equal(found[rows], gemmill.matmul(a[rows], weights[i], epilogue=text, bias=bias[i]))


def test_calls_that_leave_all_to_the_selector() -> None:
    def integers(*shape: int) -> Any:
        return torch.randint(-2, 3, shape, device="cuda").bfloat16()

    offsets = torch.tensor([30, 30, 100], dtype=torch.int32, device="cuda")
    parts = [slice(0, 30), slice(30, 30), slice(30, 100)]
    a, weights = integers(100, 64), integers(3, 80, 64).mT
    wanted = torch.cat([a[rows] @ weights[i] for i, rows in enumerate(parts)])
    one, counted = torch.tensor([0, 100, 100], dtype=torch.int32, device="cuda"), weights.mT.contiguous().mT
    for _ in range(4):  # the later ones are recognised
        assert torch.equal(gemmill.grouped_matmul(a, weights, offsets), wanted)
        assert torch.equal(gemmill.grouped_matmul(a, counted, one), a @ weights[1])
        out = torch.empty_like(wanted)
        assert torch.equal(gemmill.grouped_matmul(a, weights, offsets=one, out=out), a @ weights[1])
    left, right = integers(100, 72), integers(100, 80)
    for dtype in (torch.bfloat16, torch.float32):
        product = gemmill.grouped_matmul(left.T, right, offsets, out_dtype=dtype)
        for i, rows in enumerate(parts):
            assert torch.equal(product[i], (left[rows].float().T @ right[rows].float()).to(dtype))
    slots, counts = integers(3, 40, 64), torch.tensor([7, 0, 40], dtype=torch.int32, device="cuda")
    product = gemmill.grouped_matmul(slots, weights, counts=counts)
    for i, count in enumerate((7, 0, 40)):
        assert torch.equal(product[i, :count], slots[i, :count] @ weights[i])
    out = torch.empty(3, 40, 80, device="cuda", dtype=torch.bfloat16)
    operands = (slots, weights, out)
    table = torch.tensor([[x[i].data_ptr() for i in range(3)] for x in operands], dtype=torch.int64, device="cuda")
    gemmill.array_matmul(slots[0], weights[0], out[0], table)
    assert torch.equal(out, slots @ weights)
