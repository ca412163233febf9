"""fp8 with block scaling as in DeepSeek-V3 (1 x 128 for activations, 128 x 128 for weights), and with row scales.

    python examples/short/fp8_block_scales.py

Needs a GPU and PyTorch. Prints the error of the kernel, relative to the product of the dequantized operands, and the
total error, relative to the product before the quantization.
"""

from __future__ import annotations

import torch

import gemmill

M, N, K = 512, 1024, 2048
LARGEST = torch.finfo(torch.float8_e4m3fn).max


def quantise(x: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize x (R, C) to e4m3, with a float32 scale for each block: (R / rows, C / columns)."""
    blocks = x.float().reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    scales = blocks.abs().amax((1, 3)) / LARGEST
    small = blocks / scales[:, None, :, None]
    return small.reshape(x.shape).to(torch.float8_e4m3fn), scales


def restore(x8: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The dequantized matrix in float64."""
    rows, columns = (x8.shape[i] // scales.shape[i] for i in range(2))
    return x8.double() * scales.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)


torch.manual_seed(0)
x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
w = torch.randn(N, K, device="cuda", dtype=torch.bfloat16)
exact = x.double() @ w.double().T

for name, of_x, of_w in (("blocks", (1, 128), (128, 128)), ("rows", (1, K), (1, K))):
    x8, x_scales = quantise(x, *of_x)
    w8, w_scales = quantise(w, *of_w)
    # Block scales are (M, K / 128) and (K / 128, N / 128). Row scales are (M, 1) and (1, N); the epilogue applies them.
    d = gemmill.matmul(x8, w8.T, a_scale=x_scales, b_scale=w_scales.T, fast_accumulation=False)
    wanted = restore(x8, x_scales) @ restore(w8, w_scales).T
    of_kernel = float((d.double() - wanted).norm() / wanted.norm())
    in_all = float((d.double() - exact).norm() / exact.norm())
    print(f"scales of {name:6} {d.dtype}: error of the kernel {of_kernel:.1e}, total error {in_all:.1e}")
    assert of_kernel < 2**-7, "wrong result"
    assert in_all < 0.1
