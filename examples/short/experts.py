"""A mixture of experts with two grouped GEMMs: groups of any size, no padding, no loop over experts.

    python examples/short/experts.py

Needs a GPU and PyTorch. The offsets of the groups stay on the GPU, so the host does not synchronize.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import gemmill

TOKENS, WIDTH, INNER, EXPERTS = 3000, 512, 1024, 16

torch.manual_seed(0)
x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
gate, up = torch.randn(2, EXPERTS, INNER, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
gate_up = torch.stack((gate, up), dim=2).reshape(EXPERTS, 2 * INNER, WIDTH)  # interleaved rows
down = torch.randn(EXPERTS, WIDTH, INNER, device="cuda", dtype=torch.bfloat16) / INNER**0.5

popular = torch.linspace(1, 0, EXPERTS, device="cuda")  # the last expert gets no token
expert = torch.multinomial(popular.expand(TOKENS, -1), 1).flatten()

# Sort the tokens by expert; the offsets are the ends of the groups.
order = expert.argsort(stable=True)
offsets = torch.bincount(expert, minlength=EXPERTS).cumsum(0, dtype=torch.int32)
hidden = gemmill.grouped_matmul(x[order], gate_up.mT, offsets, epilogue="d = silu(gate) * up")
y = torch.empty_like(x)
y[order] = gemmill.grouped_matmul(hidden, down.mT, offsets)

wanted = torch.zeros(TOKENS, WIDTH, device="cuda", dtype=torch.float64)
for e in range(EXPERTS):
    mine = x[expert == e].double()
    inner = functional.silu(mine @ gate[e].double().T) * (mine @ up[e].double().T)
    wanted[expert == e] = inner @ down[e].double().T
error = float((y.double() - wanted).norm() / wanted.norm())
print("tokens per expert:", torch.bincount(expert, minlength=EXPERTS).tolist())
print(f"error of the outputs relative to float64: {error:.1e}")
assert error < 2**-7, "wrong result"
