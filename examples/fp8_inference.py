"""Inference with fp8 or 4-bit weights: memory, errors and time of a model after `gemmill.torch.convert`.

    python examples/fp8_inference.py                        # on a GPU
    python examples/fp8_inference.py --device cpu --tiny    # without a GPU: tries the program

Needs only PyTorch. For each format of the weights, prints their size, the error of the outputs relative to bf16
weights, and the milliseconds of a forward pass.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import gemmill.torch

WEIGHTS = ("e4m3_rows", "e4m3_blocks", "u4_g128")


class Gated(nn.Module):
    """A gated MLP with a residual connection, as in a Llama."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to x (tokens, width)."""
        y = self.norm(x)
        made: torch.Tensor = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return made


def main() -> None:
    """Convert the model to each format, and compare the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a forward pass (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two layers of width 128")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        gemmill.torch.run_on_cpu()
    width, inner, layers = (128, 256, 2) if arguments.tiny else (4096, 14336, 8)
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = nn.Sequential(*(Gated(width, inner) for _ in range(layers))).to(torch.bfloat16).eval()
        x = torch.randn(arguments.tokens, width, dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = model(x).double()
        report("bf16", model, x, wanted)
        for weights in WEIGHTS:
            report(weights, gemmill.torch.convert(model, weights, inplace=False), x, wanted)


def report(name: str, model: nn.Module, x: torch.Tensor, wanted: torch.Tensor) -> None:
    """Print the size, error and time of a model."""
    kept = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    error = float((model(x).double() - wanted).norm() / wanted.norm())
    start, times = time.perf_counter(), 10
    for _ in range(times):
        made = model(x)
    made.sum().item()  # waits for the GPU
    spent = (time.perf_counter() - start) / times
    print(f"{name:12} {kept / 1e6:9.2f} MB {error:9.4f} from bf16 {1000 * spent:8.3f} ms")


if __name__ == "__main__":
    main()
