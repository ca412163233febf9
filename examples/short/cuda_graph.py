"""Plan once, launch often: two layers as plans, with other tensors, and in a CUDA graph.

    python examples/short/cuda_graph.py

Needs a GPU and PyTorch. `gemmill.plan` selects, compiles and loads a kernel, and encodes its descriptors. A call of the
plan only launches, so you can capture it directly.
"""

from __future__ import annotations

import torch

import gemmill

torch.manual_seed(0)
x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
w1 = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16) / 32
w2 = torch.randn(1024, 4096, device="cuda", dtype=torch.bfloat16) / 64
hidden = torch.empty(64, 4096, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)


def error(x: torch.Tensor, y: torch.Tensor) -> float:
    """The error of y relative to both layers in float64."""
    wanted = (x.double() @ w1.double().T).relu() @ w2.double().T
    return float((y.double() - wanted).norm() / wanted.norm())


up = gemmill.plan(x, w1.T, out=hidden, epilogue="d = relu(acc)")
down = gemmill.plan(hidden, w2.T, out=y)
up()
down()
print(f"launched: {error(x, y):.1e} from float64; {up}")
assert error(x, y) < 2**-7

other = torch.randn_like(x)  # another tensor of the same shape, strides and type
up.rebind(a=other)
up()
down()
print(f"with another x: {error(other, y):.1e}")
assert error(other, y) < 2**-7

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    up()
    down()
for step in range(3):
    other.copy_(torch.randn_like(x))  # a replay reads and writes the same memory
    y.fill_(float("nan"))
    graph.replay()
    print(f"replayed, step {step}: {error(other, y):.1e}")
    assert error(other, y) < 2**-7
