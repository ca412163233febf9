"""4-bit weights and bf16 activations: quantize in groups of 128, pack, and multiply.

    python examples/short/u4_weights.py

Needs a GPU and PyTorch. The kernel upconverts the weights to bf16 in registers, so it loads only a quarter of the
bytes. This matters for decoding with few tokens, which memory bandwidth limits.
"""

from __future__ import annotations

import torch

import gemmill

M, N, K, GROUP = 16, 4096, 2048, 128

torch.manual_seed(0)
x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
w = torch.randn(N, K, device="cuda", dtype=torch.bfloat16) / K**0.5

# A scale and a zero point for each group along K: (K / GROUP, N), contiguous along N, with the type of x.
groups = w.float().reshape(N, K // GROUP, GROUP)
least, greatest = groups.amin(2), groups.amax(2)
scale = ((greatest - least) / 15).bfloat16()
zero = (-least / scale.float()).round().clamp(0, 15).bfloat16()
q = (groups / scale.float()[..., None] + zero.float()[..., None]).round().clamp(0, 15).to(torch.uint8)

# Pack two elements per byte along K, the even one in the low half.
q = q.reshape(N, K)
packed = q[:, 0::2] | q[:, 1::2] << 4  # (N, K / 2)

d = gemmill.matmul(
    x, packed.T, b_dtype="u4", b_scale=scale.T.contiguous(), b_zero=zero.T.contiguous()
)  # (M, N), in bf16

small = (q.reshape(groups.shape).bfloat16() - zero[..., None]) * scale[..., None]  # rounds like the kernel
wanted = x.double() @ small.reshape(N, K).double().T
exact = x.double() @ w.double().T
of_kernel = float((d.double() - wanted).norm() / wanted.norm())
in_all = float((d.double() - exact).norm() / exact.norm())
kept = packed.nbytes + scale.nbytes + zero.nbytes
print(f"{kept:,} bytes instead of {w.nbytes:,}")
print(f"error of the kernel {of_kernel:.1e}, total error {in_all:.1e}")
assert of_kernel < 2**-8, "wrong result"
assert in_all < 0.2
