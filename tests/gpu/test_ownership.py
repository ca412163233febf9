"""Who holds which sum, as drawn, is what kernels say themselves: their epilogue stores the thread's number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemmill import matmul
from gemmill.emitters.emit import emit
from gemmill.library.anatomy.anatomy import anatomy_of
from gemmill.library.config.names import parse_name
from gemmill.library.families.families import plan_of
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

WGMMA = "sm90a_bf16k16_bf16k16_f32_none_f32n16_{}_m1_k1_xdEreluPaccQ"
KERNELS = {
    "cooperative": WGMMA.format("128x256x64_1x1_cooperative_s3"),
    "cooperative-256": WGMMA.format("256x96x64_1x1_cooperative_s3"),
    "pingpong": WGMMA.format("64x128x64_1x1_pingpong_s4"),
    "multistage": "sm90_bf16k16_bf16k16_f32_none_f32n16_128x64x64_1x1_multistage_s4_m1_k1_xdEreluPaccQ",
    "bytes-mn-major": "sm90_e5m2mn16_e4m3mn16_f32_none_f32n16_64x64x64_1x1_multistage_s4_m1_k1_xdEreluPaccQ",
    "simt": "sm90_f32k16_f32mn16_f32_none_f32n4_128x64x8_1x1_simt_s2_m1_k1_xdEreluPaccQ",
}
"""Kernels with the epilogue d = relu(acc), which the test replaces by the thread."""
DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "f32": "float32"}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_each_sum_is_held_by_the_thread_that_is_drawn(kernel: str, tmp_path: Path) -> None:
    import torch

    config = parse_name(kernel)
    m, n, k = config.tile.m, config.tile.n, 4 * config.tile.k
    layout = anatomy_of(plan_of(config)).accumulators()
    page = emit(config).text.replace("math::relu(acc)", "float(int(threadIdx.x))")
    registry = Registry(manifests=(), store=tmp_path / "store")
    made = registry.add_source(kernel, page)

    def operand(dtype: str, rows: int, columns: int, row_major: bool) -> Any:
        zeros = torch.zeros((rows, columns) if row_major else (columns, rows), device="cuda").to(
            getattr(torch, DTYPES[dtype])
        )
        return zeros if row_major else zeros.T

    a = operand(config.a.dtype, m, k, config.a.major == "k")
    b = operand(config.b.dtype, k, n, config.b.major == "mn")
    out = torch.empty((m, n), device="cuda")
    options = {"tf32": False} if config.a.dtype == "f32" else {}
    matmul(a, b, out=out, epilogue="d = relu(acc)", kernel=made.name, registry=registry, **options)  # type: ignore[arg-type]
    threads = out.long().T.flatten().tolist()  # by m + n M
    producer = 128 * (config.family == "wgmma")
    drawn = {}
    for thread in range(layout[0].size):
        for value in range(layout[1].size):
            drawn[layout((thread, value))] = thread
    assert [drawn[place] for place in range(m * n)] == [(thread - producer) % layout[0].size for thread in threads]
