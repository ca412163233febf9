"""fp8 with scales of blocks, as DeepSeek-V3 has them: 1 x 128 of activations, 128 x 128 of weights. And of rows.

    python examples/short/fp8_block_scales.py

Needs a GPU and PyTorch. Prints how far the results are from what the fp8 operands stand for, which is the kernel's
part, and from the product in float64, which is mostly that of fp8 itself.
"""

from __future__ import annotations

import torch

import gemmill

M, N, K = 512, 1024, 2048
LARGEST = torch.finfo(torch.float8_e4m3fn).max


def quantise(x: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 of (R, C), and a scale for each block: (R / rows, C / columns), in float32."""
    blocks = x.float().reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    scales = blocks.abs().amax((1, 3)) / LARGEST
    small = blocks / scales[:, None, :, None]
    return small.reshape(x.shape).to(torch.float8_e4m3fn), scales


def restore(x8: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What they stand for, in float64."""
    rows, columns = (x8.shape[i] // scales.shape[i] for i in range(2))
    return x8.double() * scales.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)


torch.manual_seed(0)
x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
w = torch.randn(N, K, device="cuda", dtype=torch.bfloat16)
exact = x.double() @ w.double().T

for name, of_x, of_w in (("blocks", (1, 128), (128, 128)), ("rows", (1, K), (1, K))):
    x8, x_scales = quantise(x, *of_x)
    w8, w_scales = quantise(w, *of_w)
    # (M, K / 128) and (K / 128, N / 128); of rows (M, 1) and (1, N), which become part of the epilogue.
    d = gemmill.matmul(x8, w8.T, a_scale=x_scales, b_scale=w_scales.T, fast_accumulation=False)
    wanted = restore(x8, x_scales) @ restore(w8, w_scales).T
    of_kernel = float((d.double() - wanted).norm() / wanted.norm())
    in_all = float((d.double() - exact).norm() / exact.norm())
    print(f"scales of {name:6} {d.dtype}: {of_kernel:.1e} from what the operands stand for, {in_all:.1e} in all")
    assert of_kernel < 2**-7, "a kernel is wrong"
    assert in_all < 0.1
