"""Fused epilogues: bias, GELU and residual; SwiGLU; a maximum. Compared with separate PyTorch operators.

    python examples/short/fused_epilogue.py

Needs a GPU and PyTorch. gemmill compiles the expression into the kernel, so D is written once and not read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

import gemmill

torch.manual_seed(0)
x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)
w = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16) / 32
bias = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
residual = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)
gate, up = w[:2048], w[2048:]
pairs = torch.stack((gate, up), dim=1).reshape(4096, 1024)  # interleave the rows of gate and up once

GELU = "d = gelu(acc + bias[n]) + residual[m, n]"
SWIGLU = "d = silu(gate) * up"  # gate and up are the accumulators of columns 2 j and 2 j + 1
WAYS: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]] = {
    GELU: (
        lambda: gemmill.matmul(x, w.T, epilogue=GELU, bias=bias, residual=residual),
        lambda: functional.gelu(x @ w.T + bias) + residual,
    ),
    SWIGLU: (
        lambda: gemmill.matmul(x, pairs.T, epilogue=SWIGLU),
        lambda: functional.silu(x @ gate.T) * (x @ up.T),
    ),
}


def microseconds(call: Callable[[], torch.Tensor], times: int = 50) -> float:
    """Average time of a call, including host time."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times * 1e6


x64, w64 = x.double(), w.double()
sums = x64 @ w64.T
exact = {
    GELU: functional.gelu(sums + bias.double()) + residual.double(),
    SWIGLU: functional.silu(sums[:, :2048]) * sums[:, 2048:],
}
for text, (fused, unfused) in WAYS.items():
    errors = [float((way().double() - exact[text]).norm() / exact[text].norm()) for way in (fused, unfused)]
    print(f"{text}\n  fused   {microseconds(fused):7.1f} us, error {errors[0]:.1e}")
    print(f"  unfused {microseconds(unfused):7.1f} us, error {errors[1]:.1e}, since each operator rounds to bf16")
    assert errors[0] < 2**-8, "wrong result"

largest = torch.empty(1, device="cuda")
gemmill.matmul(x, w.T, epilogue="d = acc; largest = max(abs(acc))", largest=largest)  # a second output
print(f"largest magnitude, computed by the same kernel: {float(largest):.3f}")
assert abs(float(largest) / float(sums.abs().max()) - 1) < 1e-3
