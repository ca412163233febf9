"""Few rows or few columns: GEMV kernels, narrow tiles, problems that run transposed, and bounded launches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from tests.gpu.harness import check, kernel, make_case, run, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import OperandError, UnsupportedProblemError
from gemmill.profiler.measure.operands import plan_options
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


def gemv(tile: str, *, stages: int, a: str = "k16", b: str = "k16", ab: str = "bf16", **fields: Any) -> GemmConfig:
    """A GEMV kernel; A and B as in a kernel name. D, and C if there is one, may have any strides."""
    operands: dict[str, Any] = {}
    for name, text in (("a", a), ("b", b)):
        major = text.rstrip("0123456789")
        operands |= {f"{name}__major": major, f"{name}__align": int(text[len(major) :])}
    config = kernel(tile, "gemv", ab=ab, stages=stages, **operands, **fields)
    loose = {x: getattr(config, x) for x in "cd" if getattr(config, x)}
    update = {x: replace(o, major="any", align=o.type.bytes) for x, o in loose.items()}
    return replace(config, **update)


GEMV = (
    gemv("8x16x1024", stages=4),
    gemv("8x16x512", stages=4, d__dtype="f32"),
    gemv("8x32x256", stages=8, ab="f16"),
    gemv("8x16x1024", stages=4, c__dtype="bf16"),
    gemv("8x16x256", stages=4, d__dtype="f32", c__dtype="f32"),
    gemv("8x16x1024", stages=4, a="any2"),
    gemv("8x16x512", stages=4, a="k4"),
    gemv("8x16x512", stages=8, a="k8", b="k8"),
    gemv("8x16x128", stages=8, a="any2", b="k2"),
    gemv("8x16x256", stages=8, a="k2", b="k4", ab="f16"),
    gemv("8x64x512", stages=8, b="mn16"),
    gemv("8x128x64", stages=4, b="mn16", ab="f16"),
    gemv("8x64x256", stages=8, a="any2", b="mn16", c__dtype="bf16"),
    gemv("8x32x256", stages=8, b="mn8"),
    gemv("8x16x128", stages=8, a="any2", b="mn2"),
    gemv("8x32x256", stages=16, a="k8", b="mn4", ab="f16"),
    gemv("8x16x2048", stages=4, ab="s8"),
    gemv("8x32x256", stages=4, ab="u8", a="any1", b="k4", d__dtype="u8", c__dtype="u8"),
    gemv("8x16x512", stages=8, ab="e4m3", a="k8", b="k8"),
    gemv("8x16x512", stages=4, ab="e5m2", c__dtype="f32", d__dtype="f32"),
    gemv("16x16x256", stages=4, a="k8", b="k8"),
    gemv("32x16x256", stages=4, a="k4", b="k4", c__dtype="bf16"),
    gemv("32x64x256", stages=8, b="mn16", ab="f16"),
    gemv("16x16x256", stages=4, a="any1", b="k4", ab="s8"),
    gemv("16x32x256", stages=4, a="k8", b="k8", ab="e4m3"),
    # As those of the sets, which take an n-major D alone.
    kernel("32x16x256", "gemv", stages=8, a__align=4, b__align=4, d__align=2),
)

# Narrow tiles: N of 8 and its multiples, in both schedules, with every type and major of C and D.
NARROW = (
    kernel("64x8x64", "pingpong"),
    kernel("64x8x64", "pingpong", d__major="m"),
    kernel("64x24x128", "pingpong", d__major="m", a__major="mn"),
    kernel("128x8x128", d__major="m"),
    kernel("128x40x64", d__dtype="f32", d__major="m"),
    kernel("128x56x32", "pingpong", d__dtype="f32"),
    kernel("128x8x64", "cooperative", "1x2", c__dtype="bf16"),
    kernel("64x72x64", "pingpong", c__dtype="f32", c__major="m", d__major="m"),
    kernel("128x24x64", "pingpong", "1x2", ab="f16", accumulator="f16", d__major="m"),
    kernel("192x136x64"),
    kernel("64x16x64", "pingpong", d__major="m"),
    kernel("64x48x128", "pingpong", d__major="m"),
    kernel("128x32x64", "pingpong", d__major="m"),
)


@pytest.fixture(scope="module", autouse=True)
def compiled(registry: Registry) -> None:
    registry.warm([*GEMV, *NARROW])


SHAPES = (
    *((1, 256, 1024), (3, 131, 777), (8, 67, 2047), (13, 200, 5), (1, 2, 2), (5, 1, 40), (5, 1000, 2056)),
    *((32, 65, 300), (45, 40, 520)),
)


@pytest.mark.parametrize("config", GEMV, ids=kernel_name)
def test_gemv_shapes(config: GemmConfig, registry: Registry) -> None:
    for m, n, k in SHAPES:
        check(config, m, n, k, registry, alpha=2.0, beta=-1.0 if config.c else None)
    check(config, 7, 333, 1500, registry, pad=0, data="random")


@pytest.mark.parametrize("config", GEMV, ids=kernel_name)
@pytest.mark.parametrize("batched", ["abcd", "ad", "bd"])
def test_gemv_batches(config: GemmConfig, batched: str, registry: Registry) -> None:
    check(config, 4, 72, 264, registry, batch=5, batched=batched)


def test_without_k_only_c_is_left(registry: Registry) -> None:
    for config in (GEMV[3], GEMV[4], *(c for c in NARROW if c.a.major == "k")):
        check(config, 6, 70, 0, registry, beta=-1.0 if config.c else None)


def test_gemv_leaves_out_a_c_that_is_not_needed(registry: Registry) -> None:
    config = next(config for config in GEMV if config.c is not None)
    case = make_case(config, 3, 100, 100, beta=0.0)
    assert case.c is not None
    case.c.tensor.fill_(float("nan"))
    run(config, case, registry)
    case.check()


def test_gemv_adds_nothing_to_infinities(registry: Registry) -> None:
    """A zero that stands for an element outside A or B may not meet an infinity."""
    for config in (c for c in GEMV if c.c is None and c.a.type.bits == 16):
        case = make_case(config, 3, 77, 137)
        case.a.tensor[1].fill_(float("inf"))
        case.b.tensor.fill_(1)
        run(config, case, registry)
        assert (case.d.tensor[1] == float("inf")).all(), kernel_name(config)
        assert (case.d.tensor[0] == case.a.tensor[0].double().sum().to(case.d.tensor.dtype)).all(), kernel_name(config)


@pytest.mark.parametrize("config", [GEMV[0], GEMV[10]], ids=kernel_name)
def test_gemv_repeats_bit_for_bit(config: GemmConfig, registry: Registry) -> None:
    case = make_case(config, 8, 4096, 8192, data="random")
    launch = gemmill.plan(case.a.tensor, case.b.tensor, out=case.d.tensor, registry=registry, kernel=config)
    launch()
    case.check()
    first = case.d.tensor.clone()
    for _ in range(100):
        case.d.tensor.fill_(float("nan"))
        launch()
        assert torch.equal(case.d.tensor, first)


@pytest.mark.parametrize("config", NARROW, ids=kernel_name)
def test_narrow_tiles(config: GemmConfig, registry: Registry) -> None:
    for m, n, k in ((130, 3, 200), (1000, 77, 136), (64, 8, 64), (2, 3, 8)):
        check(config, m, n, k, registry)
    check(config, 300, 24, 72, registry, batch=3)
    check(config, 520, 9, 1000, registry, data="random")


@pytest.mark.parametrize("config", [c for c in NARROW if c.d.major == "m"], ids=kernel_name)
def test_a_kernel_that_fits_only_transposed_runs_so(config: GemmConfig, registry: Registry) -> None:
    c, d = config.c and replace(config.c, major="n"), replace(config.d, major="n")
    layout = replace(config, a=config.b, b=config.a, c=c, d=d)
    for m, n, k in ((1, 300, 128), (7, 1000, 264), (24, 513, 72), (100, 100, 100)):
        case = make_case(layout, m, n, k)
        launch = gemmill.plan(
            case.a.tensor,
            case.b.tensor,
            out=case.d.tensor,
            c=case.c.tensor if case.c else None,
            registry=registry,
            kernel=config,
            **plan_options(case.problem, case.operands()),
        )
        assert launch.swap_ab
        launch()
        case.check()


def test_a_transposed_plan_moves_to_other_tensors(registry: Registry) -> None:
    config = NARROW[1]
    layout = replace(config, d=replace(config.d, major="n"))
    first, second = (make_case(layout, 5, 200, 136, seed=seed) for seed in range(2))
    launch = gemmill.plan(first.a.tensor, first.b.tensor, out=first.d.tensor, registry=registry, kernel=config)
    launch()
    first.check()
    launch.rebind(a=second.a.tensor, b=second.b.tensor, out=second.d.tensor)
    launch()
    second.check()


@pytest.mark.parametrize("few", [1, 2, 5, 8, 17, 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_few_rows_and_few_columns_through_matmul(few: int, dtype: str) -> None:
    def integers(*shape: int) -> Any:
        return torch.randint(-2, 3, shape, device="cuda").to(getattr(torch, dtype))

    for many, k in ((640, 1024), (333, 77)):
        x, weights = integers(few, k), integers(many, k)
        for a, b in itertools.product((x, x.T.contiguous().T), (weights.T, weights.T.contiguous())):
            exact = a.float() @ b.float()
            wanted = exact.to(a.dtype)
            assert torch.equal(gemmill.matmul(a, b), wanted), "few rows"
            assert torch.equal(gemmill.matmul(b.T, a.T), wanted.T), "few columns"
            c = integers(few, many)
            assert torch.equal(gemmill.matmul(a, b, c=c), (exact + c.float()).to(a.dtype)), "with C"
    vector, matrix = integers(512), integers(768, 512)
    wanted = (matrix.float() @ vector.float()).to(matrix.dtype)
    assert torch.equal(gemmill.matmul(matrix, vector), wanted)
    assert torch.equal(gemmill.matmul(vector, matrix.T), wanted)


@pytest.mark.parametrize("sm_count", [1, 3, 20, 131, 1000])
def test_a_launch_stays_within_its_sms(sm_count: int, registry: Registry) -> None:
    wide = kernel("128x128x64", cluster="2x1")
    for config, (m, n, k) in ((kernel(), (2000, 1500, 200)), (wide, (2000, 1500, 200)), (GEMV[0], (5, 9000, 520))):
        case = make_case(config, m, n, k)
        size = config.cluster.m * config.cluster.n
        options = {"registry": registry, "kernel": config, "out": case.d.tensor, "sm_count": sm_count}
        if size > sm_count:
            with pytest.raises(UnsupportedProblemError, match="runs in clusters of 2"):
                gemmill.plan(case.a.tensor, case.b.tensor, **options)
            continue
        launch = gemmill.plan(case.a.tensor, case.b.tensor, **options)
        assert 0 < launch.ctas <= sm_count
        assert launch.ctas % size == 0
        launch()
        case.check()


def test_selection_and_calls_heed_sm_count() -> None:
    a = torch.randint(-2, 3, (1024, 512), device="cuda").to(torch.bfloat16)
    wanted = (a.float() @ a.float().T).to(a.dtype)
    for sm_count in (1, 2, 16, None):
        assert torch.equal(gemmill.matmul(a, a.T, sm_count=sm_count), wanted)
        blocks = gemmill.plan(a, a.T, sm_count=sm_count).ctas
        assert blocks > 16 if sm_count is None else 0 < blocks <= sm_count
    for wrong in (0, -1, 1.5, True, "8"):
        with pytest.raises(OperandError, match="sm_count is"):
            gemmill.plan(a, a.T, sm_count=wrong)  # type: ignore[arg-type]
