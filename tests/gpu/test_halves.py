"""Gates whose columns are the halves of B: the bits of a gate of runs on weights in that order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gpu.groups import SCALED, ends, slots, stacked
from tests.gpu.harness import kernel, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.epilogues.parse import canonical
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

TEXT = "d = silu(gate{0} + x[n]) * (up{0} + y[n])"
HALVES, RUNS = (canonical(TEXT.format(end)) for end in ("_half", "8"))
PRODUCT = canonical("d = gate_half * up_half")
KERNELS = (
    kernel(tile="128x256x64", cluster="2x1", epilogue=HALVES),
    kernel(tile="128x160x64", cluster="1x2", epilogue=HALVES),
    kernel(tile="64x64x128", schedule="pingpong", cluster="4x1", epilogue=HALVES),
    kernel(tile="64x256x64", schedule="pingpong", epilogue=HALVES),
    kernel(ab="f16", d__dtype="f16", tile="128x128x32", cluster="2x1", epilogue=HALVES),
    stacked("128x256x64", cluster="2x1", epilogue=HALVES),
    stacked("64x256x64", "pingpong", cluster="2x1", epilogue=HALVES),
    stacked("128x256x64", cluster="2x1", scheduler__rows="gathered", epilogue=HALVES),
    stacked("128x128x64", "pingpong", scheduler__rows="gathered", epilogue=HALVES),
    slots("128x256x64", cluster="2x1", epilogue=HALVES),
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    shared = Registry()
    shared.warm((*KERNELS, *map(of_runs, KERNELS)))
    return shared


def of_runs(config: GemmConfig) -> GemmConfig:
    return replace(config, epilogue=RUNS)


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_halves_have_the_bits_of_runs(config: GemmConfig, registry: Registry) -> None:
    groups, dtype = 5, torch.float16 if config.a.dtype == "f16" else torch.bfloat16
    for n, k in ((16, 64), (272, 200), (768, 264), (1040, 64)):
        torch.manual_seed(n)
        weights = torch.randn(groups, n, k, device="cuda").to(dtype) / k**0.5
        call: dict[str, Any] = {name: torch.randn(n // 2, device="cuda") for name in "xy"}
        call |= {"registry": registry}
        batching = config.scheduler.batching
        if batching == "masked":
            a = torch.randn(groups, 140, k, device="cuda").to(dtype)
            call["counts"] = torch.tensor([140, 0, 1, 65, 128], dtype=torch.int32, device="cuda")
        elif batching == "grouped":
            offsets = ends(130, 0, 1, 64, 200)
            call["offsets"] = torch.tensor(offsets, dtype=torch.int32, device="cuda")
            a = torch.randn(offsets[-1], k, device="cuda").to(dtype)
        else:
            a = torch.randn(groups, 150, k, device="cuda").to(dtype)
        if config.scheduler.rows == "gathered":
            call["rows"] = torch.randint(0, len(a), (len(a),), dtype=torch.int32, device="cuda")
        multiply = gemmill.matmul if batching == "strided" else gemmill.grouped_matmul
        shape = (*a.shape[:-1], n // 2)
        found, wanted = (torch.zeros(shape, dtype=dtype, device="cuda") for _ in range(2))
        multiply(a, weights.mT, out=found, kernel=config, epilogue=HALVES, **call)
        in_runs = gemmill.interleaved(weights).mT
        multiply(a, in_runs, out=wanted, kernel=of_runs(config), epilogue=RUNS, **call)
        torch.cuda.synchronize()
        assert found.abs().max() > 0
        assert torch.equal(found.view(torch.int16), wanted.view(torch.int16)), (n, k)


OF_BLOCKS = (
    kernel("128x256x128", cluster="2x1", epilogue=PRODUCT, **SCALED),
    kernel("128x128x128", epilogue=PRODUCT, **SCALED),
    kernel("64x64x128", "pingpong", epilogue=PRODUCT, **SCALED),
    stacked("128x256x128", cluster="1x2", epilogue=PRODUCT, **SCALED),
    stacked("64x256x128", "pingpong", epilogue=PRODUCT, **SCALED),
    slots("64x128x128", "pingpong", cluster="2x1", epilogue=PRODUCT, **SCALED),
)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float8_e8m0fnu], ids=str)
@pytest.mark.parametrize("config", OF_BLOCKS, ids=kernel_name)
def test_halves_with_scales_of_blocks(config: GemmConfig, scale_dtype: Any) -> None:
    """Both sums have the bits of a product without the gate, and d is their product, rounded once."""
    kinds = BLOCK_SCALES["ue8m0" if scale_dtype != torch.float32 else "f32"]
    groups, batching = 3, config.scheduler.batching
    plain = kernel(scheduler__batching=batching, **SCALED | {"d__dtype": "f32"}, tile="128x128x128")
    config, plain = (
        replace(own, **{x: replace(getattr(own, x), scale=y) for x, y in zip("ab", kinds, strict=True)})
        for own in (config, plain)
    )
    for n, k in ((256, 128), (768, 400), (1280, 1040)):
        torch.manual_seed(n)
        call: dict[str, Any] = {}
        if batching == "masked":
            call["counts"] = torch.tensor([140, 1, 65], dtype=torch.int32, device="cuda")
        elif batching == "grouped":
            call["offsets"] = torch.tensor(ends(130, 0, 200), dtype=torch.int32, device="cuda")
        rows = (330,) if batching == "grouped" else (groups, 150)
        a = torch.randn(*rows, k, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(groups, n, k, device="cuda").to(torch.float8_e4m3fn)
        blocks = -(-k // 128)
        of_a, of_b = (
            torch.randint(-3, 3, shape, device="cuda").float().exp2().to(scale_dtype)
            for shape in ((*rows, blocks), (groups, n // 128, blocks))
        )
        call |= {"a_scale": of_a, "b_scale": of_b.mT}
        multiply = gemmill.matmul if batching == "strided" else gemmill.grouped_matmul
        sums = torch.zeros(*rows, n, device="cuda")
        found = torch.zeros(*rows, n // 2, dtype=torch.bfloat16, device="cuda")
        multiply(a, b.mT, out=sums, kernel=plain, **call)
        multiply(a, b.mT, out=found, kernel=config, epilogue=PRODUCT, **call)
        gate, up = sums.chunk(2, -1)
        assert found.abs().max() > 0
        assert torch.equal(found, (gate * up).bfloat16()), (n, k)


def test_matrices_that_lie_apart_are_refused() -> None:
    x, weights = (torch.randn(*shape, device="cuda").bfloat16() for shape in ((40, 64), (6, 32, 64)))
    offsets = torch.tensor([10, 20, 40], dtype=torch.int32, device="cuda")
    with pytest.raises(gemmill.GemmillError, match=r"b: matrices are .* bytes apart"):
        gemmill.grouped_matmul(x, weights[::2].mT, offsets, epilogue="d = silu(gate_half) * up_half")
