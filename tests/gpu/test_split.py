"""f32 operands that are multiplied as sums of products of components of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.harness import check, kernel, least_aligns, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CaptureError, OperandError
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


def split(tile: str, schedule: str, cluster: str = "1x1", majors: str = "k k", **fields: Any) -> GemmConfig:
    a, b = majors.split()
    fields = {"ab": "bf16x6", "a__major": a, "b__major": b, "promote": 2, **fields}
    return kernel(f"{tile}x32", schedule, cluster, **fields)


KERNELS: tuple[GemmConfig, ...] = (
    split("128x256", "cooperative", "2x1"),
    split("128x256", "cooperative", "2x1", "k mn"),
    split("256x128", "cooperative", "1x2", "mn k", ab="bf16x9"),
    split("128x192", "cooperative", "2x1", "mn mn", ab="bf16x3", c__dtype="f32"),
    split("192x128", "cooperative", "2x1", d__major="m"),
    split("64x64", "pingpong", majors="k mn", ab="bf16x9", c__dtype="bf16", d__dtype="bf16"),
    split("64x32", "pingpong", majors="mn mn", d__dtype="f16"),
    split("128x128", "cooperative", scheduler__decomposition="splitk"),
    split("64x64", "pingpong", majors="mn mn", ab="bf16x3", scheduler__decomposition="splitk"),
    split("128x128", "cooperative", "2x1", scheduler__decomposition="stream", ab="bf16x9"),
    split("128x256", "cooperative", "2x1", "k mn", ab="f16x3"),
    split("256x128", "cooperative", "1x2", "mn k", ab="f16x3", d__dtype="bf16"),
    split("192x128", "cooperative", "2x1", "mn mn", ab="f16x3", d__major="m"),
    split("64x32", "pingpong", "1x1", "k k", ab="f16x3", c__dtype="f32"),
    split("64x128", "pingpong", "1x1", "mn mn", ab="f16x3"),
    split("128x128", "cooperative", "1x1", "k k", ab="f16x3", scheduler__decomposition="splitk"),
    split("128x128", "cooperative", "2x1", "mn k", ab="f16x3", scheduler__decomposition="stream"),
)
PRECISIONS = "bf16x9", "bf16x6", "bf16x3", "f16x3"


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm(KERNELS)
    return shared


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_sums_of_integers_are_exact(config: GemmConfig, registry: Registry) -> None:
    """Also zeros: what takes the place of components that are 0 leaves no trace."""
    check(config, 640, 520, 416, registry)
    check(config, 301, 264, 200, registry, aligns=least_aligns(config), offset=1)
    check(config, 130, 72, 333, registry, batch=3, offset=3)
    check(config, 130, 72, 64, registry, batch=2, batched="acd" if config.c else "ad")
    check(config, 70, 72, 5, registry)
    if config.a.major == config.b.major == "k":  # operands without elements are bound K-major
        check(config, 64, 8, 0, registry)


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_random_operands_are_within_the_bound(config: GemmConfig, registry: Registry) -> None:
    check(config, 301, 264, 1000, registry, data="random", batch=2, offset=1)


def normal(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


def one_sign(*shape: int) -> Any:
    return torch.rand(*shape, device="cuda")


def wide(*shape: int) -> Any:
    return torch.ldexp(normal(*shape), torch.randint(-20, 21, shape, device="cuda"))


def far(*shape: int) -> Any:
    """Beyond the range of f16."""
    return torch.ldexp(normal(*shape), torch.full(shape, 50, device="cuda"))


def cancelling(*shape: int) -> Any:
    """Every other row nearly the negative of the one before."""
    x = normal(*shape)
    x[1::2] = -x[::2] * (1 + 2**-12 * torch.rand_like(x[::2]))
    return x


@pytest.mark.parametrize("draw", [normal, one_sign, wide, far, cancelling])
def test_errors_are_about_those_of_cublas_or_smaller(draw: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    k = 4096
    a, b = normal(512, k), draw(k, 768)
    if draw is cancelling:
        a[:, 1::2] = a[:, ::2]
    else:
        a = draw(512, k)
    wanted = a.double() @ b.double()
    size = a.double().abs() @ b.double().abs()

    def errors(d: Any) -> Any:
        return (d.double() - wanted).abs() / size

    torch.backends.cuda.matmul.allow_tf32 = False
    own = errors(a @ b)
    for precision in ("bf16x9", "bf16x6"):
        found = errors(gemmill.matmul(a, b, precision=precision))
        assert found.max() <= 1.25 * own.max(), precision
        assert found.mean() <= 1.5 * own.mean(), precision
    assert errors(gemmill.matmul(a, b, precision="bf16x3")).max() <= 2.0**-14


def sizes(*shape: int) -> Any:
    """Rows and columns of many sizes, beyond the range of f16."""
    x = normal(*shape)
    for axis in range(2):
        extents = [1 if i == axis else n for i, n in enumerate(shape)]
        x = torch.ldexp(x, torch.randint(-30, 31, extents, device="cuda"))
    return x


def beside_zeros(*shape: int) -> Any:
    """The largest element of a row meets a 0 of each column, and that of a column a 0 of each row."""
    x = normal(*shape) * 2.0**-20
    left, zero = (1, 2) if shape[0] < shape[1] else (2, 1)
    for at, value in ((left, 1.0), (zero, 0.0)):
        x[(slice(None), at) if shape[0] < shape[1] else at] = value
    return x


@pytest.mark.parametrize("draw", [normal, one_sign, wide, far, sizes, beside_zeros])
@pytest.mark.parametrize("turned", [False, True])
def test_errors_of_f16_are_within_the_bound(draw: Callable[..., Any], turned: bool) -> None:
    """2^-19 of |A| |B|, and 2^-37 of the largest of a row or column times the other's sum of magnitudes."""
    torch.manual_seed(0)
    a, b = draw(512, 4096), draw(4096, 768)
    got = gemmill.matmul(a.T.contiguous().T, b.T.contiguous().T, precision="f16x3") if turned else None
    got = gemmill.matmul(a, b, precision="f16x3") if got is None else got
    left, right = a.double().abs(), b.double().abs()
    of_rows = left.amax(1, keepdim=True) * right.sum(0) + left.sum(1, keepdim=True) * right.amax(0)
    bound = 2.0**-19 * (left @ right) + 2.0**-37 * of_rows
    error = (got.double() - a.double() @ b.double()).abs()
    assert (error <= bound).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_infinities_and_nan_are_those_of_f32(precision: str) -> None:
    a, b = normal(256, 320), normal(320, 256)
    a[3, 5], a[7, 9], b[11, 13], b[12, 17] = (float(x) for x in ("inf", "nan", "-inf", "nan"))
    a[20, 11], a[21, 11], a[3, 12], b[5, 40], b[5, 41] = 2.0**-140, 0.0, float("-inf"), 1.0, 0.0
    got, wanted = gemmill.matmul(a, b, precision=precision), a.double() @ b.double()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got[wanted.isinf()].double(), wanted[wanted.isinf()])
    finite = wanted.isfinite()
    assert (got[finite].double() - wanted[finite]).abs().max() < 0.01


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("left", "right"), [(3e38, 2.0**-30), (2.0**-100, 2.0**-20), (1 + 2.0**-15, 2.0**-109)])
def test_the_range_is_that_of_f32(precision: str, left: float, right: float) -> None:
    a, b = torch.full((64, 64), left, device="cuda"), torch.full((64, 64), right, device="cuda")
    got, wanted = gemmill.matmul(a, b, precision=precision), 64 * float(a[0, 0]) * float(b[0, 0])
    assert (got.double() - wanted).abs().max() <= 2.0**-16 * wanted


def test_subnormal_and_huge_elements_of_f16_keep_their_products() -> None:
    a, b = torch.full((64, 64), 2.0**-140, device="cuda"), torch.full((64, 64), 2.0**126, device="cuda")
    b[:, 1] = 2.0**-149
    got = gemmill.matmul(a, b, precision="f16x3")
    assert torch.equal(got, (a.double() @ b.double()).float())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_infinities_meet_tiny_and_infinite_elements(precision: str) -> None:
    a, b = normal(256, 320), normal(320, 256)
    a[:, 7], b[7, :] = 2.0**-60, -(2.0**-70)
    a[4, 7], b[7, 9], b[7, 11] = float("inf"), float("inf"), float("-inf")
    got, wanted = gemmill.matmul(a, b, precision=precision), a.double() @ b.double()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got[wanted.isinf()].double(), wanted[wanted.isinf()])


def test_an_epilogue_and_c_apply_as_to_other_sums() -> None:
    a, b, c, bias = normal(300, 500), normal(500, 400), normal(300, 400), normal(400)
    wanted = a.double() @ b.double()
    got = gemmill.matmul(a, b, c=c, alpha=0.5, beta=2.0, precision="bf16x6")
    assert (got.double() - (0.5 * wanted + 2 * c.double())).abs().max() < 1e-4
    got = gemmill.matmul(a, b, epilogue="d = relu(acc + bias[n])", bias=bias, precision="bf16x6", out_dtype="bf16")
    assert (got.double() - (wanted + bias.double()).relu()).abs().max() < 0.5


@pytest.mark.parametrize(
    ("precision", "components"), [("bf16x6", "3 components of bf16"), ("f16x3", "2 components of f16")]
)
def test_a_plan_follows_its_operands_in_streams_and_graphs(precision: str, components: str) -> None:
    a, b = normal(700, 501), normal(501, 600)
    with gemmill.plan(a, b, precision=precision) as launch:
        assert launch.choice is not None
        assert f"A and B are split into {components}" in launch.choice.reason
        launch()
        first = launch.out.clone()
        assert (first.double() - a.double() @ b.double()).abs().max() < 1e-3
        a.mul_(2)  # what is split is what is there at the launch
        launch()
        assert torch.equal(launch.out, 2 * first)
        launch.rebind(a=(a / 2).clone())
        launch()
        assert torch.equal(launch.out, first)
    outs = [torch.zeros_like(first) for _ in range(3)]
    plans = [gemmill.plan((i + 1) * a, b, out=out, precision=precision) for i, out in enumerate(outs)]
    for each in plans:
        each()
    torch.cuda.synchronize()
    wanted = [out.clone() for out in outs]
    for each in plans:
        for _ in range(5):
            with torch.cuda.stream(torch.cuda.Stream()):
                each()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each in plans:
            each()
    for out in outs:
        out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, outs, wanted))


def test_invariant_rows_do_not_depend_on_m() -> None:
    a, b = normal(1000, 777), normal(777, 520)
    whole = gemmill.matmul(a, b, precision="bf16x6", bits="invariant")
    for m in (1, 64, 130):
        assert torch.equal(gemmill.matmul(a[:m], b, precision="bf16x6", bits="invariant"), whole[:m])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_groups_of_rows_are_multiplied_in_components(precision: str) -> None:
    x, experts = normal(1500, 512), normal(6, 640, 512)
    experts *= torch.ldexp(torch.ones(6, 1, 1, device="cuda"), torch.arange(-60, 60, 20, device="cuda")[:, None, None])
    ends = torch.tensor([0, 700, 701, 900, 900, 1450], dtype=torch.int32, device="cuda")
    out = torch.zeros(1500, 640, device="cuda")
    gemmill.grouped_matmul(x, experts.mT, ends, out=out, precision=precision)
    for i, (begin, end) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
        wanted = x[begin:end].double() @ experts[i].double().T
        size = x[begin:end].double().abs() @ experts[i].double().abs().T
        assert ((out[begin:end].double() - wanted).abs() <= 2.0**-14 * size).all()
    assert not out[1450:].any()


def test_what_is_refused() -> None:
    a, b = normal(64, 64), normal(64, 64)
    with pytest.raises(OperandError, match="precision is 'bf16x7'; it must be one of 'ieee', 'tf32', 'bf16x9'"):
        gemmill.matmul(a, b, precision="bf16x7")
    with pytest.raises(OperandError, match="tf32 is True and precision is 'bf16x6': pass one of them"):
        gemmill.matmul(a, b, precision="bf16x6", tf32=True)
    assert torch.equal(gemmill.matmul(a, b, precision="tf32"), gemmill.matmul(a, b, tf32=True))


def test_f32_is_multiplied_as_it_is_where_that_is_faster_or_the_only_way() -> None:
    a, b = normal(640, 1024), normal(1024, 512)
    strided = a[:, ::2]
    assert torch.equal(gemmill.matmul(strided, b[:512], precision="bf16x6"), gemmill.matmul(strided, b[:512]))
    assert torch.equal(gemmill.matmul(a, b, precision="bf16x6", sm_count=64), gemmill.matmul(a, b, sm_count=64))
    heads = normal(2, 200, 6, 96).transpose(1, 2)  # a nested batch, in several launches
    got = gemmill.matmul(heads, heads.transpose(2, 3), precision="bf16x6")
    assert (got.double() - heads.double() @ heads.double().transpose(2, 3)).abs().max() < 1e-4


def test_a_capture_needs_the_kernel_that_splits() -> None:
    from gemmill.runtime.launch import conversion

    a, b = normal(2048, 2048), normal(2048, 2048)  # fewer rows would not be split
    with gemmill.plan(a, b, precision="bf16x6") as launch:
        assert launch.choice is not None
        options: dict[str, Any] = {"kernel": launch.choice.config, "precision": "bf16x6"}
    other = normal(2049, 2048)  # a launch of the same operands is already prepared
    loaded = dict(conversion._kernels)
    try:
        conversion._kernels.clear()
        with (
            torch.cuda.graph(torch.cuda.CUDAGraph()),
            pytest.raises(CaptureError, match="the kernel that splits operands is not loaded"),
        ):
            gemmill.matmul(other, b, **options)
    finally:
        conversion._kernels.update(loaded)
    assert torch.equal(gemmill.matmul(other, b, **options)[:2048], gemmill.matmul(other[:2048], b, **options))
