"""Memory: what is never read, empty problems, views, aliases, and more elements than 31 bits count."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.kernels import BASE, WGMMA, configs, each
from tests.gpu.harness import check, make_case, run, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

WITH_C = [case for case in WGMMA if case.config.c is not None]


@each(WITH_C)
def test_beta_zero_does_not_read_c(config: GemmConfig, registry: Registry) -> None:
    case = make_case(config, 300, 264, 100, beta=0.0)
    assert case.c is not None
    case.c.tensor.fill_(float("nan"))
    run(config, case, registry)
    case.check()


@each(WITH_C)
def test_infinities_and_nans_of_c_reach_d(config: GemmConfig, registry: Registry) -> None:
    case = make_case(config, 128, 128, 64, beta=1.0)
    assert case.c is not None
    case.c.tensor[3, 5] = float("inf")
    case.c.tensor[100, 77] = float("nan")
    run(config, case, registry)
    d = case.d.tensor
    assert d[3, 5] == float("inf")
    assert d[100, 77].isnan()
    assert int((~d.isfinite()).sum()) == 2


@each(WGMMA)
def test_a_d_that_tma_cannot_store(config: GemmConfig, registry: Registry) -> None:
    for align in {config.d.type.bytes, 4, 8}:
        check(config, 301, 269, 100, registry, aligns={"d": align}, offset=1)
    check(config, 130, 67, 64, registry, aligns={"d": config.d.type.bytes}, offset=3, batch=3)


@each(BASE)
def test_nan_and_infinity_of_a_stay_in_their_row(config: GemmConfig, registry: Registry) -> None:
    case = make_case(config, 200, 136, 72)
    case.a.tensor[17, 71] = float("nan")
    case.a.tensor[130] = 0.0
    case.a.tensor[130, 0] = float("inf")
    case.b.tensor[0] = 1.0
    run(config, case, registry)
    d = case.d.tensor
    assert d[17].isnan().all()
    assert (d[130] == float("inf")).all()
    assert int((~d.isfinite()).any(dim=1).sum()) == 2


@pytest.mark.parametrize("major", ["n", "m"])
@pytest.mark.parametrize(("m", "n"), [(5, 24), (1, 8), (33, 72)])
def test_what_a_stage_holds_beyond_few_rows_reaches_nothing(m: int, n: int, major: str) -> None:
    """Boxes are cut to operands of fewer rows than a tile; a launch before it leaves NaN there."""
    tile = "64x64x64" if major == "n" else "64x48x64"
    kernel = f"sm90a_bf16k16_bf16k16_f32_none_bf16{major}16_{tile}_1x1_pingpong_s9_m8_k1_linear"
    nan = torch.full((132 * 64, 64), float("nan"), device="cuda", dtype=torch.bfloat16)
    a = torch.randint(-3, 4, (m, 64), device="cuda").to(torch.bfloat16)
    b = torch.randint(-3, 4, (n, 64), device="cuda").to(torch.bfloat16).T
    text = "d = acc; top = max(abs(d)); per_row[m] = sum(d); columns[n] = sum(d)"
    top, rows, columns = (torch.empty(size, device="cuda") for size in (1, m, n))
    wanted = a.float() @ b.float()
    gemmill.matmul(nan, nan[:64].T, kernel=kernel)
    assert torch.equal(gemmill.matmul(a, b, kernel=kernel).float(), wanted)
    gemmill.matmul(nan, nan[:64].T, kernel=kernel)
    d = gemmill.matmul(a, b, epilogue=text, top=top, per_row=rows, columns=columns)
    assert torch.equal(d.float(), wanted)
    assert top.item() == wanted.abs().max()
    assert torch.equal(rows, wanted.sum(1))
    assert torch.equal(columns, wanted.sum(0))


@pytest.mark.parametrize(("m", "n", "batch"), [(0, 64, None), (64, 0, None), (0, 0, None), (32, 32, 0)])
def test_nothing_is_launched_for_an_empty_d(m: int, n: int, batch: int | None) -> None:
    lead = () if batch is None else (batch,)
    a = torch.randn(*lead, m, 32, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(*lead, 32, n, device="cuda", dtype=torch.bfloat16)
    d = gemmill.matmul(a, b)
    assert d.shape == (*lead, m, n)
    launch = gemmill.plan(a, b, out=d)
    launch()
    assert launch.kernel is None
    torch.cuda.synchronize()


def test_without_k_matmul_writes_zeros() -> None:
    a = torch.empty(48, 0, device="cuda", dtype=torch.bfloat16)
    b = torch.empty(0, 64, device="cuda", dtype=torch.bfloat16)
    out = torch.full((48, 64), float("nan"), device="cuda", dtype=torch.bfloat16)
    assert gemmill.matmul(a, b, out=out) is out
    assert (out == 0).all()
    c = torch.randn(48, 64, device="cuda", dtype=torch.bfloat16)
    out.fill_(float("nan"))
    gemmill.matmul(a, b, out=out, c=c, beta=2.0)
    assert torch.equal(out, 2 * c)


@each(WITH_C)
def test_c_may_be_d(config: GemmConfig, registry: Registry) -> None:
    if config.c != config.d:
        pytest.skip("C and D differ in format")
    case = make_case(config, 700, 520, 256, alpha=2.0, beta=0.5)
    assert case.c is not None
    case.d.tensor.copy_(case.c.tensor)
    with gemmill.plan(
        case.a.tensor,
        case.b.tensor,
        out=case.d.tensor,
        c=case.d.tensor,
        alpha=2.0,
        beta=0.5,
        accumulator=config.accumulator,
        registry=registry,
        kernel=config,
    ) as launch:
        launch()
        torch.cuda.synchronize()
    case.check()


def bf16(*shape: int) -> Any:
    return torch.randint(-2, 3, shape, dtype=torch.int8, device="cuda").to(torch.bfloat16)


def exact(a: Any, b: Any) -> Any:
    """a @ b of small integers: exact in f32, whatever the order of summation."""
    return a.float() @ b.float()


def test_views_at_an_offset_and_with_strides() -> None:
    big = bf16(600, 1024)
    a, b = big[8:308, 8:328], big[300:500, 16:336].T  # rows of 1024, both starting inside; B is K-major
    out = torch.full((400, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
    gemmill.matmul(a, b, out=out[50:350, 64:264])
    assert torch.equal(out[50:350, 64:264], exact(a, b).bfloat16())
    out[50:350, 64:264] = float("nan")
    assert out.isnan().all(), "elements beside the view were written"


def test_permuted_batch_is_read_in_place() -> None:
    heads = bf16(96, 8, 64)  # (tokens, heads, features)
    q, k = heads.permute(1, 0, 2), bf16(96, 8, 64).permute(1, 2, 0)
    assert torch.equal(gemmill.matmul(q, k), exact(q, k).bfloat16())


ROWS = 4096


@each([BASE[2], BASE[1]])
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"),
    [(65536, 32808, 64, None), (65544, 136, 32776, None), (136, 65544, 32776, None), (8192, 8200, 64, 33)],
    ids=["D", "A", "B", "batched D"],
)
def test_more_than_2_to_the_31_elements(
    config: GemmConfig, m: int, n: int, k: int, batch: int | None, registry: Registry
) -> None:
    assert max(m * n, m * k, n * k) * (batch or 1) > 1 << 31
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of free GPU memory")
    lead = () if batch is None else (batch,)
    a, b = bf16(*lead, m, k), bf16(*lead, n, k).mT
    out = torch.full((*lead, m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    gemmill.plan(a, b, out=out, registry=registry, kernel=config)()
    for index in range(batch or 1):
        left, right, result = (x[index] if batch else x for x in (a, b, out))
        for row in range(0, m, ROWS):
            part = slice(row, row + ROWS)
            assert torch.equal(result[part], exact(left[part], right).bfloat16()), f"batch {index}, rows from {row}"


def test_one_column_and_one_row(registry: Registry) -> None:
    for config in configs(BASE):
        check(config, 1, 4096, 512, registry)
        check(config, 4096, 1, 512, registry)
