"""Experts in 4 bits as gpt-oss stores them: MXFP4, rows of gate and up that alternate, biases, a clamped activation.

    python examples/short/mxfp4_experts.py

Needs a GPU and PyTorch. The weights are random, in the layout of the checkpoint.
"""

from __future__ import annotations

import torch

import gemmill.torch

TOKENS, SLOTS, WIDTH, INNER, EXPERTS = 100, 4, 576, 576, 16
LIMIT = 7.0
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def checkpoint(rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks (experts, rows, K / 32, 16) and scales (experts, rows, K / 32) as in a checkpoint."""
    blocks = torch.randint(0, 256, (EXPERTS, rows, k // 32, 16), device="cuda", dtype=torch.uint8)
    return blocks, torch.randint(119, 122, blocks.shape[:3], device="cuda", dtype=torch.uint8)


def wide(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What a checkpoint stands for, in float64."""
    numbers = torch.tensor(NUMBERS, device="cuda", dtype=torch.float64)
    values = numbers[torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).int()]
    return (values * torch.exp2(scales.double() - 127)[..., None]).flatten(-2)


torch.manual_seed(0)
gate_up, down = checkpoint(2 * INNER, WIDTH), checkpoint(WIDTH, INNER)
gate_up_bias, down_bias = (torch.randn(EXPERTS, n, device="cuda").bfloat16() for n in (2 * INNER, WIDTH))
x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
weights, ids = torch.rand(TOKENS, EXPERTS, device="cuda").softmax(-1).topk(SLOTS)

# Once, when weights are loaded.
w1, w1_scale = gemmill.torch.mxfp4(*(gemmill.interleaved(part, alternate=True) for part in gate_up))
w2, w2_scale = gemmill.torch.mxfp4(*down)
biases = {"gate_bias": gate_up_bias[:, 0::2].contiguous(), "up_bias": gate_up_bias[:, 1::2].contiguous()}

y = gemmill.moe(
    x,
    w1,
    w2,
    ids,
    weights,
    w_dtype="e2m1",
    w1_scale=w1_scale,
    w2_scale=w2_scale,
    b2=down_bias,
    activation="""
        g = min(gate8 + gate_bias[n], limit)
        u = clamp(up8 + up_bias[n], -limit, limit)
        d = (u + 1) * g * sigmoid(1.702 * g)
    """,
    limit=LIMIT,
    **biases,
)

wanted = torch.zeros(TOKENS, WIDTH, device="cuda", dtype=torch.float64)
first, second = wide(*gate_up), wide(*down)
for e in range(EXPERTS):
    sums = x.double() @ first[e].T + gate_up_bias[e].double()
    gate, up = sums[:, 0::2].clamp(max=LIMIT), sums[:, 1::2].clamp(-LIMIT, LIMIT)
    of_expert = ((up + 1) * gate * torch.sigmoid(1.702 * gate)) @ second[e].T + down_bias[e].double()
    wanted += (weights * (ids == e)).sum(1, keepdim=True) * of_expert
error = float((y.double() - wanted).norm() / wanted.norm())
size = sum(t.numel() * t.element_size() for t in (w1, w1_scale, w2, w2_scale)) / (first.numel() + second.numel())
print(f"{8 * size:.2f} bits for each weight; error of the outputs relative to float64: {error:.1e}")
assert error < 2**-7, "wrong result"
