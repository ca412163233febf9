"""Symmetric products: kernels that multiply half of D, and ``gemmill.syrk``."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import check, check_a_thousand_runs, kernel, make_case, run, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


def symmetric(tile: str, *options: str, **fields: Any) -> GemmConfig:
    return kernel(tile, *options, **{"scheduler__symmetry": "symmetric", "scheduler__swizzle_size": 8, **fields})


KERNELS = (
    symmetric("128x128x64", "pingpong", "1x1"),
    symmetric("128x128x64", "pingpong", "2x1", c__dtype="bf16"),
    symmetric("64x64x64", "pingpong", "1x2", ab="f16", a__major="mn", b__major="mn", c__dtype="f16"),
    symmetric("128x144x64", "cooperative", "1x1", b__major="mn"),
    symmetric("256x136x64", "cooperative", "2x1", a__major="mn"),
    symmetric("192x192x64", "cooperative", "1x2", c__dtype="bf16", scheduler__swizzle_size=2, stages=2),
    symmetric("128x256x64", "cooperative", "1x1", ab="f16"),
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm(KERNELS)
    return shared


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_every_element_is_exact(config: GemmConfig, registry: Registry) -> None:
    for rows, k in ((64, 64), (1000, 136), (2312, 264), (4104, 72)):
        check(config, rows, rows, k, registry)
    check(config, 520, 520, 200, registry, batch=5, alpha=2.0)
    check(config, 777, 777, 96, registry, aligns={"d": 2}, pad=3)


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_halves_are_equal_to_the_last_bit(config: GemmConfig, registry: Registry) -> None:
    for rows, k in ((1000, 4096), (2048, 1000)):
        case = make_case(config, rows, rows, k, data="random")
        run(config, case, registry)
        case.check()
        assert torch.equal(case.d.tensor, case.d.tensor.mT)


def test_launches_repeat_bit_for_bit(registry: Registry) -> None:
    check_a_thousand_runs(KERNELS[0], 1024, 1024, 512, registry)


@pytest.mark.parametrize("shape", [(4096, 512), (300, 100), (3, 1024, 256), (2, 2, 130, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_syrk(shape: tuple[int, ...], dtype: Any) -> None:
    x = torch.randint(-2, 3, shape, device="cuda").to(dtype)
    wanted = (x.float() @ x.float().mT).to(dtype)
    for a in (x, x.mT.contiguous().mT):
        assert torch.equal(gemmill.syrk(a), wanted)
    added = (2 * (x.float() @ x.float().mT) - wanted.float()).to(dtype)
    assert torch.equal(gemmill.syrk(x, c=wanted, alpha=2.0, beta=-1.0), added)
    column_major = torch.empty_like(wanted).mT
    assert torch.equal(gemmill.syrk(x, out=column_major), wanted)


@pytest.mark.parametrize("rows", [520, 2048])
def test_c_may_be_d(rows: int) -> None:
    x = torch.randint(-2, 3, (rows, 256), device="cuda").bfloat16()
    c = torch.randint(-2, 3, (rows, rows), device="cuda").bfloat16()
    c = c + c.mT
    wanted = (x.float() @ x.float().mT + 3 * c.float()).bfloat16()
    assert torch.equal(gemmill.syrk(x, c=c, beta=3.0, out=c), wanted)


def test_gradients() -> None:
    x = torch.randint(-2, 3, (256, 512), device="cuda").bfloat16().requires_grad_()
    g = torch.randint(-1, 2, (256, 256), device="cuda").bfloat16()
    (found,) = torch.autograd.grad(gemmill.syrk(x), x, g)
    assert torch.equal(found, ((g + g.mT).float() @ x.detach().float()).bfloat16())


@pytest.mark.parametrize("shape", [(1024, 1024), (512, 2048), (2, 1536, 512)])
def test_newton_schulz_makes_singular_values_about_one(shape: tuple[int, ...]) -> None:
    import gemmill.torch

    x = gemmill.torch.newton_schulz(torch.randn(shape, device="cuda"))
    assert (x.shape, x.dtype) == (shape, torch.bfloat16)
    least, most = torch.linalg.svdvals(x.float()).aminmax()
    if shape[-1] != shape[-2]:  # singular values of a square matrix may be close to 0
        assert least > 0.6
    assert most < 1.25
