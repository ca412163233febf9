"""Scales in all their shapes, batches of scaled operands, vectors of any strides, integers of groups, and alpha = 0,
against float64. Operands are small integers and scales powers of two, so that each D has one right value."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.plain import plainly
from tests.gpu.harness import torch

import gemmill
from gemmill.runtime.api import caches

pytestmark = pytest.mark.gpu

M, N, K = 200, 264, 400


def integers(*shape: int, dtype: Any = torch.float8_e4m3fn) -> Any:
    return torch.randint(-2, 3, shape, device="cuda").to(dtype)


def powers(*shape: int, dtype: Any = torch.float32) -> Any:
    exponents = torch.randint(-2, 3, shape, device="cuda")
    if dtype == torch.float8_e8m0fnu:
        return (exponents + 127).to(torch.uint8).view(dtype)
    return exponents.float().exp2().to(dtype)


def exact(scale: Any) -> Any:
    """A scale in float64."""
    if isinstance(scale, float | int):
        return scale
    if scale.dtype == torch.float8_e8m0fnu:
        return (scale.view(torch.uint8).double() - 127).exp2()
    return scale.double()


def rounded(x: Any, dtype: Any = torch.bfloat16) -> Any:
    return x.float().to(dtype)


def weights(n: int = N, k: int = K) -> Any:
    return integers(n, k).mT


SCALES: dict[str, Any] = {
    "rows and columns": lambda: (powers(M, 1), powers(1, N)),
    "rows": lambda: (powers(M, 1), None),
    "columns": lambda: (None, powers(N)),
    "one element each": lambda: (powers(), powers(1, 1)),
    "a row's and a number": lambda: (powers(M, 1), 0.5),
    "numbers": lambda: (2, 0.25),
    "at a stride": lambda: (powers(M, 3)[:, 1:2], powers(N, 2).mT[:1]),
    "expanded": lambda: (powers(1, 1).expand(M, 1), powers(1).expand(1, N)),
    "bf16": lambda: (powers(M, 1, dtype=torch.bfloat16), powers(1, N, dtype=torch.bfloat16)),
    "ue8m0": lambda: (powers(M, 1, dtype=torch.float8_e8m0fnu), powers(1, N, dtype=torch.float8_e8m0fnu)),
    "one of ue8m0": lambda: (powers(1, dtype=torch.float8_e8m0fnu), powers(2 * N, dtype=torch.float8_e8m0fnu)[::2]),
}


@pytest.mark.parametrize("form", SCALES)
def test_scales_of_operands_rows_and_columns(form: str) -> None:
    a_scale, b_scale = SCALES[form]()
    a, b = integers(M, K), weights()
    wanted = a.double() @ b.double()
    wanted = wanted * (1 if a_scale is None else exact(a_scale)) * (1 if b_scale is None else exact(b_scale))
    for _ in range(3):  # the plain way, then recognised
        assert torch.equal(gemmill.matmul(a, b, a_scale=a_scale, b_scale=b_scale), rounded(wanted))


def in_blocks(*shape: int, along: str) -> Any:
    """Scales of ue8m0 that are contiguous along their rows, along their columns, or along neither."""
    dtype = torch.float8_e8m0fnu
    match along:
        case "rows":
            return powers(*shape, dtype=dtype)
        case "columns":
            return powers(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT
        case _:  # each at another place of its word
            return powers(*shape[:-1], 3 * shape[-1] + 2, dtype=dtype)[..., 1:-1:3]


def by_block(scale: Any, rows: int, columns: int, extents: tuple[int, int]) -> Any:
    """Scales in float64, one for each element of a matrix of some extents."""
    spread = exact(scale).repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return spread[..., : extents[0], : extents[1]]


BYTES = pytest.mark.parametrize("along", ["rows", "columns", "neither"])
BLOCK_SCALED = {
    "few rows": (3, 264, 400),
    "tails": (M, N, K),
    "many tiles": (1024, 1152, 1536),
    "one block of K": (300, 512, 100),
    "deep": (256, 128, 16384),
}


@BYTES
@pytest.mark.parametrize("shape", BLOCK_SCALED)
def test_block_scales_of_a_byte(shape: str, along: str) -> None:
    m, n, k = BLOCK_SCALED[shape]
    a, b = integers(m, k), weights(n, k)
    a_scale = in_blocks(m, -(-k // 128), along=along)
    b_scale = in_blocks(-(-k // 128), -(-n // 128), along=along)
    product = (a.double() * by_block(a_scale, 1, 128, (m, k))) @ (b.double() * by_block(b_scale, 128, 128, (k, n)))
    with gemmill.plan(a, b, a_scale=a_scale, b_scale=b_scale) as plan:
        for _ in range(2):
            plan.out.fill_(float("nan"))
            plan()
            assert (plan.problem.a_scale, plan.problem.b_scale) == ("1x128e8", "128x128e8")
            assert torch.equal(plan.out, rounded(product))
    residual = integers(m, n, dtype=torch.bfloat16)
    fused = gemmill.matmul(a, b, a_scale=a_scale, b_scale=b_scale, epilogue="d = relu(acc) + r[m, n]", r=residual)
    assert torch.equal(fused, rounded(product.relu() + residual.double()))


_SCALED = "sm90a_e4m3k16s1x128e8_e4m3k16s128x128e8_f32p4_none_bf16n16_"


@BYTES
@pytest.mark.parametrize(
    "tail",
    [
        "64x64x128_2x1_pingpong_s12_m8_k1_linear",
        "128x128x128_1x2_pingpong_s2_m8_k1_linear",
        "64x144x128_1x1_pingpong_s4_m8_k1_linear",
        "128x256x128_1x1_cooperative_s3_n16_k1stream_linear",
        "192x128x128_1x1_cooperative_s4_m4_k1_linear",
        "256x128x128_1x2_cooperative_s3_m8_k1_linear",
        "128x128x128_1x1_cooperative_s5_m8_k2cluster_linear",
        "128x128x128_1x1_cooperative_s5_m8_splitk_linear",
    ],
)
def test_kernels_of_every_schedule_upconvert_scales_of_a_byte(tail: str, along: str) -> None:
    m, n, k = 777, 1000, 2304
    a, b = integers(m, k), weights(n, k)
    a_scale, b_scale = in_blocks(m, 18, along=along), in_blocks(18, 8, along=along)
    product = (a.double() * by_block(a_scale, 1, 128, (m, k))) @ (b.double() * by_block(b_scale, 128, 128, (k, n)))
    for _ in range(3):
        found = gemmill.matmul(a, b, a_scale=a_scale, b_scale=b_scale, kernel=_SCALED + tail)
        assert torch.equal(found, rounded(product))


@pytest.mark.parametrize("n", [128, 256])  # of one block, scales might by their shapes be of rows
def test_block_scales_of_a_byte_may_be_the_least_the_greatest_and_no_number(n: int) -> None:
    a, b = (torch.ones(extent, 128, device="cuda").to(torch.float8_e4m3fn) for extent in (128, n))
    bits = torch.arange(128, device="cuda", dtype=torch.uint8).view(-1, 1)
    for first, other in ((0, 127 + 7), (128, 127 - 14)):  # all 256, times what keeps them within the range of f32
        a_scale, b_scale = bits + first, torch.full((1, n // 128), other, device="cuda", dtype=torch.uint8)
        scales = {"a_scale": a_scale.view(torch.float8_e8m0fnu), "b_scale": b_scale.view(torch.float8_e8m0fnu)}
        wanted = (a_scale.double() - 127).exp2() * 2.0 ** (other - 127) * 128
        wanted = wanted.float().masked_fill(a_scale == 255, float("nan")).expand(128, n)
        found = gemmill.matmul(a, b.mT, **scales).float()
        assert torch.equal(found.nan_to_num(nan=-1), wanted.nan_to_num(nan=-1))


@BYTES
def test_grouped_block_scales_of_a_byte(along: str) -> None:
    sizes, n, k = [130, 0, 7, 300], 384, 640
    ends = torch.tensor(sizes).cumsum(0).tolist()
    total, blocks = ends[-1], -(-k // 128)
    a, b = integers(total, k), integers(4, n, k).mT
    a_scale, b_scale = in_blocks(total, blocks, along=along), in_blocks(4, blocks, 3, along=along)
    right = b.double() * by_block(b_scale, 128, 128, (k, n))
    left = a.double() * by_block(a_scale, 1, 128, (total, k))
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    parts = zip([0, *ends[:-1]], ends, strict=True)
    wanted = torch.cat([left[i:j] @ right[g] for g, (i, j) in enumerate(parts)])
    for _ in range(2):
        found = gemmill.grouped_matmul(a, b, offsets, a_scale=a_scale, b_scale=b_scale)
        assert torch.equal(found, rounded(wanted))
    slots, slot_scale = integers(4, 300, k), in_blocks(4, 300, blocks, along=along)
    counts = torch.tensor(sizes, dtype=torch.int32, device="cuda")
    out = gemmill.grouped_matmul(slots, b, counts=counts, a_scale=slot_scale, b_scale=b_scale)
    products = (slots.double() * by_block(slot_scale, 1, 128, (300, k))) @ right
    for g, size in enumerate(sizes):
        assert torch.equal(out[g, :size], rounded(products[g, :size]))


@BYTES
def test_batches_with_block_scales_of_a_byte(along: str) -> None:
    a, b = integers(2, 96, 3, 256).transpose(1, 2), integers(2, 128, 3, 256).transpose(1, 2).mT
    a_scale, b_scale = in_blocks(2, 3, 96, 2, along=along), in_blocks(2, 3, 2, 1, along=along)
    wide = a.double() * by_block(a_scale, 1, 128, (96, 256))
    wanted = wide @ (b.double() * by_block(b_scale, 128, 128, (256, 128)))
    assert torch.equal(gemmill.matmul(a, b, a_scale=a_scale, b_scale=b_scale), rounded(wanted))


@pytest.mark.parametrize(
    ("epilogue", "operands"),
    [
        ("d = relu(acc) + x[n]", {"x": (N,)}),
        ("d = relu(acc * b_scale[n]) * a_scale[m]", {}),
        ("d = alpha * acc + beta * c", {"c": (M, N)}),
        ("d = relu(gate) * up", {}),
    ],
)
def test_scales_multiply_what_an_expression_reads(epilogue: str, operands: dict[str, tuple[int, ...]]) -> None:
    a, b, a_scale = integers(M, K), weights(), powers(M, 1)
    b_scale = powers(1) if "gate" in epilogue else powers(1, N)
    scaled = (a.double() @ b.double()) * exact(a_scale) * exact(b_scale)
    given = {name: integers(*shape, dtype=torch.bfloat16) for name, shape in operands.items()}
    if "c" in given:
        wanted, text = 2 * scaled + 3 * given["c"].double(), None
        given |= {"alpha": 2.0, "beta": 3.0}
    elif "gate" in epilogue:
        wanted, text = scaled[:, ::2].relu() * scaled[:, 1::2], epilogue
    else:
        wanted, text = scaled.relu() + (given["x"].double() if "x" in given else 0), epilogue
    assert torch.equal(gemmill.matmul(a, b, a_scale=a_scale, b_scale=b_scale, epilogue=text, **given), rounded(wanted))


def test_recognised_calls_tell_scales_apart() -> None:
    a, b = integers(M, K), weights()
    product = a.double() @ b.double()
    rows = [powers(M, 1), powers(M, 1), powers(2 * M, 1)[::2], powers(1, 1), powers(), powers(1, 1).expand(M, 1)]
    plain = plainly(gemmill.matmul)
    for _ in range(4):
        for a_scale in rows:
            for b_scale in (None, 0.5, 2, powers(1, N)):
                wanted = rounded(product * exact(a_scale) * (1 if b_scale is None else exact(b_scale)))
                for call in (gemmill.matmul, plain):
                    assert torch.equal(call(a, b, a_scale=a_scale, b_scale=b_scale), wanted)
    assert len(caches.recognised) > 0


def test_a_plan_takes_other_scales_of_the_same_shape() -> None:
    a, b, a_scale, b_scale = integers(M, K), weights(), powers(M, 1), powers(1, N)
    with gemmill.plan(a, b, a_scale=a_scale, b_scale=b_scale) as plan:
        for _ in range(2):
            plan()
            assert torch.equal(plan.out, rounded((a.double() @ b.double()) * exact(a_scale) * exact(b_scale)))
            a_scale = powers(M, 1)
            plan.rebind(a_scale=a_scale)


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "rows"])
@pytest.mark.parametrize("shape", [(3, 70), (2, 3, 40), (5, 1)], ids=str)
def test_scaled_batches_that_share_b_are_as_one_matrix(shape: tuple[int, ...], blocks: bool) -> None:
    n, k = 256, 384
    a, b = integers(*shape, k), weights(n, k)
    a_scale, b_scale = (powers(*shape, 3), powers(3, 2)) if blocks else (powers(*shape, 1), powers(1, n))
    left, right = a.double() * exact(a_scale).repeat_interleave(128 if blocks else k, -1), b.double()
    right = right * (exact(b_scale).repeat_interleave(128, 0).repeat_interleave(128, 1) if blocks else exact(b_scale))
    residual = integers(*shape, n, dtype=torch.bfloat16)
    with gemmill.plan(a, b, a_scale=a_scale, b_scale=b_scale) as plan:
        plan()
        assert (plan.problem.batch, plan.problem.m) == (1, a.shape[:-1].numel())
        assert torch.equal(plan.out, rounded(left @ right))
    epilogue = "d = acc + r[m, n]"
    with gemmill.plan(a, b, a_scale=a_scale, b_scale=b_scale, epilogue=epilogue, r=residual) as plan:
        plan()
        assert plan.problem.batch == 1
        assert torch.equal(plan.out, rounded(left @ right + residual.double()))


def test_a_batch_with_scales_of_its_matrices() -> None:
    a, b = integers(3, 64, 128), integers(3, 96, 128).mT
    for a_scale, b_scale in ((powers(3, 64, 1), powers(3, 1, 96)), (powers(3, 1, 1), powers(1, 96))):
        wanted = rounded((a.double() @ b.double()) * exact(a_scale) * exact(b_scale))
        assert torch.equal(gemmill.matmul(a, b, a_scale=a_scale, b_scale=b_scale), wanted)


def test_narrow_weights_with_a_scale_for_each_column() -> None:
    a, b, b_scale = integers(48, 512, dtype=torch.bfloat16), integers(N, 512, dtype=torch.int8).mT, powers(1, N)
    wanted = rounded((a.double() @ b.double()) * exact(b_scale))
    assert torch.equal(gemmill.matmul(a, b, b_scale=b_scale), wanted)


VECTORS: dict[str, Any] = {
    "neighbours": lambda extent: powers(extent),
    "at a stride": lambda extent: powers(extent, 3)[:, 1],
    "expanded": lambda extent: powers(1).expand(extent),
    "of each matrix": lambda extent: powers(3, extent),
    "of each matrix, at a stride": lambda extent: powers(extent, 3).mT,
    "of each matrix, expanded": lambda extent: powers(3, 1).expand(3, extent),
    "of ue8m0, at a stride": lambda extent: powers(2 * extent, dtype=torch.float8_e8m0fnu)[::2],
}


@pytest.mark.parametrize("form", VECTORS)
def test_vectors_of_any_strides(form: str) -> None:
    a, b = (integers(3, *shape, dtype=torch.bfloat16) for shape in ((48, 64), (64, 72)))
    row, column = VECTORS[form](48), VECTORS[form](72)
    wanted = rounded((a.double() @ b.double()) * exact(row)[..., None] + exact(column)[..., None, :])
    for _ in range(3):
        assert torch.equal(gemmill.matmul(a, b, epilogue="d = acc * x[m] + y[n]", x=row, y=column), wanted)
    vector = gemmill.matmul(a, b[0, :, 0], epilogue="d = acc * x[m]", x=row)
    assert torch.equal(vector, rounded((a.double() @ b[0, :, 0].double()) * exact(row)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32])
@pytest.mark.parametrize("step", [1, 2])
def test_offsets_and_counts_of_any_width_and_stride(dtype: Any, step: int) -> None:
    sizes = [70, 0, 33, 128]
    ends = torch.tensor(sizes).cumsum(0)

    def on_gpu(values: Any) -> Any:
        spread = torch.full((len(sizes) * step,), 7, dtype=torch.int64)
        spread[::step] = values
        return spread.to(dtype).cuda()[::step]

    total = int(ends[-1])
    a, b = integers(total, 64, dtype=torch.bfloat16), integers(4, 80, 64, dtype=torch.bfloat16).mT
    parts = list(zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True))
    rows = torch.cat([a[i:j].double() @ b[g].double() for g, (i, j) in enumerate(parts)])
    assert torch.equal(gemmill.grouped_matmul(a, b, on_gpu(ends)), rounded(rows))
    x, y = integers(total, 72, dtype=torch.bfloat16).mT, integers(total, 80, dtype=torch.bfloat16)
    products = torch.stack([x[:, i:j].double() @ y[i:j].double() for i, j in parts])
    assert torch.equal(gemmill.grouped_matmul(x, y, on_gpu(ends)), rounded(products))
    slots = integers(4, 128, 64, dtype=torch.bfloat16)
    out = gemmill.grouped_matmul(slots, b, counts=on_gpu(torch.tensor(sizes)))
    for g, size in enumerate(sizes):
        assert torch.equal(out[g, :size], rounded(slots[g, :size].double() @ b[g].double()))


def test_offsets_of_64_bits_are_read_anew_by_a_graph_and_reach_nothing_outside() -> None:
    a, b = integers(300, 64, dtype=torch.bfloat16), integers(3, 80, 64, dtype=torch.bfloat16).mT
    offsets = torch.tensor([100, 200, 300], device="cuda")
    with gemmill.plan(a, b, offsets=offsets) as plan:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan()
        for ends in ([100, 200, 300], [0, 7, 300], [-5, 150, 1 << 40 | 300], [5, 1 << 33 | 60, 2**31 - 1]):
            offsets.copy_(torch.tensor(ends))
            plan.out.fill_(float("nan"))
            graph.replay()
            low = [min(max((end & 0xFFFFFFFF) - (1 << 32 if end & 1 << 31 else 0), 0), 300) for end in ends]
            for g, (i, j) in enumerate(zip([0, *low[:-1]], low, strict=True)):
                assert torch.equal(plan.out[i:j], rounded(a[i:j].double() @ b[g].double()))


@pytest.mark.parametrize("epilogue", [None, "d = relu(alpha * acc + x[n])"])
def test_alpha_of_0_reads_no_a_and_b(epilogue: str | None) -> None:
    for a, b in (
        (integers(M, K, dtype=torch.bfloat16), integers(N, K, dtype=torch.bfloat16).mT),
        (integers(2, 64, 96, dtype=torch.float32), integers(96, 40, dtype=torch.float32)),
    ):
        a.fill_(float("nan"))
        b[0] = float("inf")
        c = integers(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
        x = integers(b.shape[-1], dtype=a.dtype)
        for _ in range(2):
            if epilogue:
                wanted = x.relu().expand_as(c)
                assert torch.equal(gemmill.matmul(a, b, alpha=0.0, epilogue=epilogue, x=x), wanted)
            else:
                assert not gemmill.matmul(a, b, alpha=0.0).any()
                assert torch.equal(gemmill.matmul(a, b, alpha=0.0, c=c, beta=2.0), 2 * c)
    narrow = {"b_dtype": "s4", "b_scale": powers(4, N, dtype=torch.bfloat16)}
    assert not gemmill.matmul(
        integers(M, 512, dtype=torch.bfloat16), integers(N, 256, dtype=torch.int8).mT, alpha=0, **narrow
    ).any()
    scaled = gemmill.matmul(integers(M, K), weights(), alpha=0, a_scale=powers(M, 4), b_scale=powers(4, 3))
    assert not scaled.any()
