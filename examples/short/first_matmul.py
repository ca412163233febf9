"""Your first matrix products: `gemmill.matmul` instead of `@`.

    python examples/short/first_matmul.py

Needs a GPU and PyTorch. gemmill reads operands in place, with any strides. At the first call for a problem, it loads a
kernel from the store, or compiles it.
"""

from __future__ import annotations

import torch

import gemmill

torch.manual_seed(0)
x = torch.randn(4, 300, 1024, device="cuda", dtype=torch.bfloat16)  # (batch, tokens, width)
w = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)  # the layout of nn.Linear
residual = torch.randn(4, 300, 2048, device="cuda", dtype=torch.bfloat16)
q = torch.randn(2, 304, 8, 64, device="cuda", dtype=torch.float16)  # (batch, tokens, heads, width of a head)
exact = x.double() @ w.double().T

found = {
    "x @ w.T": (gemmill.matmul(x, w.T), exact),
    "in float32": (gemmill.matmul(x, w.T, out_dtype="f32"), exact),
    "0.5 x @ w.T + residual": (gemmill.matmul(x, w.T, c=residual, alpha=0.5), 0.5 * exact + residual.double()),
    "heads, strided views": (
        gemmill.matmul(q.transpose(1, 2), q.transpose(1, 2).mT),
        q.transpose(1, 2).double() @ q.transpose(1, 2).double().mT,
    ),
}
out = torch.empty(4, 300, 2048, device="cuda", dtype=torch.bfloat16)
gemmill.matmul(x, w.T, out=out)  # writes to existing memory
found["with `out`"] = out, exact

for name, (d, wanted) in found.items():
    error = float((d.double() - wanted).norm() / wanted.norm())
    print(f"{name:28} {tuple(d.shape)!s:18} {d.dtype!s:15} {error:.1e} from float64")
    assert error < 2**-8, "wrong result"
