"""A layer of a mixture of experts: groups of any size, no padding, no copy of the tokens, no loop over experts.

    python examples/short/experts.py

Needs a GPU and PyTorch. The host does not synchronize, so a CUDA graph could hold the call.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import gemmill

TOKENS, SLOTS, WIDTH, INNER, EXPERTS = 3000, 2, 512, 1024, 16

torch.manual_seed(0)
x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
gate, up = torch.randn(2, EXPERTS, INNER, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
w1 = gemmill.interleaved(torch.cat((gate, up), dim=1))  # once, when weights are loaded
down = torch.randn(EXPERTS, WIDTH, INNER, device="cuda", dtype=torch.bfloat16) / INNER**0.5

popular = torch.linspace(1, 0, EXPERTS, device="cuda")  # the last expert gets no token
ids = torch.multinomial(popular.expand(TOKENS, -1), SLOTS)
weights = torch.rand(TOKENS, SLOTS, device="cuda")

y = gemmill.moe(x, w1, down, ids, weights)

wanted = torch.zeros(TOKENS, WIDTH, device="cuda", dtype=torch.float64)
for e in range(EXPERTS):
    inner = functional.silu(x.double() @ gate[e].double().T) * (x.double() @ up[e].double().T)
    wanted += (weights * (ids == e)).sum(1, keepdim=True) * (inner @ down[e].double().T)
error = float((y.double() - wanted).norm() / wanted.norm())
print("tokens per expert:", torch.bincount(ids.flatten(), minlength=EXPERTS).tolist())
print(f"error of the outputs relative to float64: {error:.1e}")
assert error < 2**-7, "wrong result"
