"""Complex operands: as real products, by every precision, in any layout, with conjugates, C and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.harness import torch

import gemmill
from gemmill.library.dtypes import SPLIT
from gemmill.library.errors import OperandError

pytestmark = pytest.mark.gpu
M, N, K = 200, 136, 264
C64, C128 = torch.complex64, torch.complex128


def normal(*shape: int, dtype: Any = C64) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def turned(*shape: int, dtype: Any = C64) -> Any:
    *batch, rows, columns = shape
    return normal(*batch, columns, rows, dtype=dtype).mT


BOUNDS = {
    "ieee": 2.0**-20,
    "f16x3": 2.0**-16,
    "bf16x9": 2.0**-20,
    "bf16x6": 2.0**-20,
    "bf16x3": 2.0**-13,
    "tf32": 2.0**-9,
}
"""Of the error over |A| |B|, by precision."""


def assert_near(found: Any, a: Any, b: Any, bound: float, added: Any = 0, alpha: float = 1.0) -> None:
    """Whether a product is within a bound of that in complex128 on the CPU."""
    wide = [x.cpu().to(C128).resolve_conj() for x in (a, b)]
    wanted, size = alpha * (wide[0] @ wide[1]), wide[0].abs() @ wide[1].abs()
    if isinstance(added, torch.Tensor):
        added = added.cpu().to(C128)
        size = size + added.abs()
    assert found.shape == (wanted + added).shape
    assert bool(((found.cpu().to(C128) - wanted - added).abs() <= bound * size).all())


LAYOUTS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "nn": lambda t: (normal(M, K, dtype=t), normal(K, N, dtype=t)),
    "nt": lambda t: (normal(M, K, dtype=t), turned(K, N, dtype=t)),
    "tn": lambda t: (turned(M, K, dtype=t), normal(K, N, dtype=t)),
    "tt": lambda t: (turned(M, K, dtype=t), turned(K, N, dtype=t)),
    "nc": lambda t: (normal(M, K, dtype=t), normal(N, K, dtype=t).mH),
    "cn": lambda t: (normal(K, M, dtype=t).mH, normal(K, N, dtype=t)),
    "cc": lambda t: (normal(M, K, dtype=t).conj(), normal(K, N, dtype=t).conj()),
    "apart": lambda t: (normal(M, 2 * K, dtype=t)[:, ::2], normal(K, 3 * N + 1, dtype=t)[:, 1::3]),
    "odd": lambda t: (normal(33, 77, dtype=t)[:, 1:], normal(76, 19, dtype=t)[:, 2:]),
    "a vector": lambda t: (normal(K, dtype=t), normal(K, N, dtype=t)),
    "a column": lambda t: (normal(M, K, dtype=t), normal(K, dtype=t)),
    "K of 1": lambda t: (normal(M, 1, dtype=t), normal(1, N, dtype=t)),
    "a batch": lambda t: (normal(3, M, K, dtype=t), turned(3, K, N, dtype=t)),
    "a batch of one B": lambda t: (normal(3, M, K, dtype=t), normal(K, N, dtype=t)),
    "a batch of one A": lambda t: (turned(M, K, dtype=t), normal(3, K, N, dtype=t)),
    "large": lambda t: (normal(1024, 1024, dtype=t), normal(1024, 1024, dtype=t)),
}


@pytest.mark.parametrize("precision", ["ieee", "bf16x6"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_complex64_in_any_layout(name: str, precision: str) -> None:
    a, b = LAYOUTS[name](C64)
    for _ in range(2):  # read, then recognised
        assert_near(gemmill.matmul(a, b, precision=precision), a, b, BOUNDS[precision])


@pytest.mark.parametrize("name", LAYOUTS)
def test_complex128_in_any_layout(name: str) -> None:
    a, b = LAYOUTS[name](C128)
    assert_near(gemmill.matmul(a, b), a, b, 2.0**-48)


@pytest.mark.parametrize("precision", BOUNDS)
def test_precisions(precision: str) -> None:
    a, b = normal(512, 1024), normal(1024, 768)
    found = gemmill.matmul(a, b, precision=precision)
    assert found.dtype is C64
    assert_near(found, a, b, BOUNDS[precision])


@pytest.mark.parametrize("bits", ["invariant", "any"])
@pytest.mark.parametrize("precision", ["ieee", "bf16x6"])
def test_c_and_factors(precision: str, bits: str) -> None:
    a, b, c = normal(M, K), normal(K, N), normal(M, N)
    keywords: dict[str, Any] = {"precision": precision, "bits": bits}
    found = gemmill.matmul(a, b, c=c, alpha=-0.5, beta=2.0, **keywords)
    assert_near(found, a, b, 2.0**-20, 2 * c, alpha=-0.5)
    row = normal(N)
    if precision in SPLIT and bits != "any":  # f32 as it is has other bits
        with pytest.raises(gemmill.UnsupportedProblemError, match="needs C's major n"):
            gemmill.matmul(a, b, c=row, **keywords)
    else:
        assert_near(gemmill.matmul(a, b, c=row, **keywords), a, b, 2.0**-20, row.expand(M, N))
    of_columns, before = turned(M, N), None
    before = of_columns.clone()
    assert gemmill.matmul(a.mH.contiguous().mH, b, c=of_columns, out=of_columns, **keywords) is of_columns
    assert_near(of_columns, a, b, 2.0**-20, before)


@pytest.mark.parametrize("by_columns", [False, True])
def test_plans_and_graphs(by_columns: bool) -> None:
    a, b = turned(1024, 512), normal(512, 768)
    out = turned(1024, 768) if by_columns else normal(1024, 768)
    with gemmill.plan(a, b, out=out, precision="bf16x6") as launch:
        assert launch.choice is not None
        assert "gemmill first writes A and B as real matrices" in launch.choice.reason
        launch()
        assert_near(out, a, b, 2.0**-20)
        other = turned(1024, 512)
        launch.rebind(a=other)
        launch()
        assert_near(out, other, b, 2.0**-20)
        with pytest.raises(OperandError, match="the plan needs complex64"):
            launch.rebind(b=b.conj())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        out.zero_()
        other.mul_(2)
        graph.replay()
        torch.cuda.synchronize()
        assert_near(out, other, b, 2.0**-20)


def test_infinities_stay_where_they_are() -> None:
    """Four real products, so that a part is infinite or NaN only where the four are."""
    a, b = normal(256, 256), normal(256, 256)
    torch.view_as_real(a)[3, 5, 0] = float("inf")
    found, wanted = gemmill.matmul(a, b, precision="bf16x6"), a.cpu() @ b.cpu()
    rows = torch.arange(256) != 3
    assert bool(found.cpu()[rows].isfinite().all())
    assert not bool(found.cpu()[3].isfinite().any())
    assert bool((found.cpu()[rows] - wanted[rows]).abs().max() < 1e-3)


def test_cupy_arrays() -> None:
    cupy: Any = pytest.importorskip("cupy")
    a, b = cupy.asarray(normal(M, K)), cupy.asarray(normal(K, N))
    found = gemmill.matmul(a, b, precision="bf16x6")
    assert found.dtype == "complex64"
    assert_near(torch.as_tensor(found), torch.as_tensor(a), torch.as_tensor(b), 2.0**-20)


def test_programs_multiply_complex64_with_the_precision_of_the_block() -> None:
    """Conjugates and gradients too; without one, and complex128, are left to PyTorch."""
    import gemmill.torch

    a, b, row = normal(512, 1024), normal(1024, 768), normal(768)
    gemmill.torch.reset_stats()
    with gemmill.torch.enabled(f32="bf16x6"):
        assert_near(a @ b, a, b, 2.0**-20)
        assert_near(b.mH @ a.mH, b.mH, a.mH, 2.0**-20)
        assert_near(torch.addmm(row, a, b), a, b, 2.0**-20, row.expand(512, 768))
        assert_near(a[None] @ b[None], a[None], b[None], 2.0**-20)
        leaf = a.clone().requires_grad_()
        (leaf @ b).real.sum().backward()
        assert_near(leaf.grad, torch.ones(512, 768, dtype=C64), b.mH, 2.0**-20)
        torch.mm(a.to(C128), b.to(C128))
    served, fallback = gemmill.torch.stats().served, gemmill.torch.stats().fallback
    assert {name: sum(x.calls for x in lines.values()) for name, lines in served.items()} == {"mm": 4, "bmm": 1}
    assert [*fallback["mm"]] == ["complex128 is not supported"]
    assert [*fallback["addmm"]] == ["a matrix is contiguous along neither extent"]  # the row, which stays C


@pytest.mark.parametrize("dtype", [C64, C128])
def test_gradients(dtype: Any) -> None:
    precision: dict[str, Any] = {"precision": "bf16x6"} if dtype is C64 else {}
    leaves = [normal(2, M, K, dtype=dtype), normal(K, N, dtype=dtype), normal(M, N, dtype=dtype)]

    def gradients(multiply: Callable[..., Any], device: str) -> list[Any]:
        wide = C128 if device == "cpu" else dtype
        a, b, c = (x.to(device, wide, copy=True).requires_grad_() for x in leaves)
        d = multiply(a, b, c)
        (d.real.square().sum() + d.imag.sum()).backward()
        return [x.grad.cpu() for x in (a, b, c)]

    found = gradients(lambda a, b, c: gemmill.matmul(a, b.conj(), c=c, **precision), "cuda")
    wanted = gradients(lambda a, b, c: a @ b.conj() + c, "cpu")
    for x, y in zip(found, wanted, strict=True):
        assert (x - y).abs().max() <= (2.0**-17 if dtype is C64 else 2.0**-44) * y.abs().max()
