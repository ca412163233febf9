"""Train a GPT of nanoGPT's size with `torch.compile`: first with PyTorch's GEMMs, then with gemmill's.

    python examples/train_nanogpt.py                        # on a GPU: 12 layers of width 768
    python examples/train_nanogpt.py --device cpu --tiny    # without a GPU: tries the program

Needs only PyTorch. Inside `gemmill.torch.enabled()`, `torch.compile` uses gemmill's operators for the products of the
forward and the backward pass, and fuses biases and activations into them. Prints losses and milliseconds per step.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import gemmill.torch


class Block(nn.Module):
    """Attention and an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block to x (batch, tokens, width)."""
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.project(mixed)
        return x + self.down(gelu(self.up(self.norms[1](x)), approximate="tanh"))


class GPT(nn.Module):
    """A language model that predicts the next byte."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.apply(lambda x: isinstance(x, nn.Linear | nn.Embedding) and nn.init.normal_(x.weight, 0, 0.02))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of the prediction of each byte of ids (batch, tokens) from the bytes before it."""
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))[:, :-1]
        return cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def main() -> None:
    """Train with both, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two layers of width 64")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        gemmill.torch.run_on_cpu()
    layers, width, heads, tokens, batch = (2, 64, 4, 32, 2) if arguments.tiny else (12, 768, 12, 1024, 16)
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = torch.tensor([*b"".join(page.read_bytes() for page in pages)])
    sides: dict[str, AbstractContextManager[Any]] = {"PyTorch": nullcontext(), "gemmill": gemmill.torch.enabled()}
    for name, context in sides.items():
        torch.compiler.reset()  # do not reuse compiled code of the other run
        torch.manual_seed(0)
        model = GPT(layers, width, heads, tokens).to(arguments.device)
        with context:
            losses, seconds = train(model, text, arguments.steps, batch, tokens)
        shown = ", ".join(f"{losses[i]:.3f}" for i in range(0, len(losses), max(1, len(losses) // 5)))
        print(f"{name}: losses {shown} ... {losses[-1]:.3f}; {1000 * seconds:.1f} ms per step")
    print(gemmill.torch.stats())


def train(model: GPT, text: torch.Tensor, steps: int, batch: int, tokens: int) -> tuple[list[float], float]:
    """Train a model; returns the loss of each step, and the seconds per step in the second half."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model)
    draw, start = torch.Generator().manual_seed(1), 0.0
    losses: list[torch.Tensor | float] = []
    for step in range(steps):
        if step == steps // 2:
            losses[-1:] = [float(losses[-1])]  # waits for the GPU
            start = time.perf_counter()
        starts = torch.randint(0, len(text) - tokens, (batch,), generator=draw)
        ids = torch.stack([text[i : i + tokens] for i in starts.tolist()]).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = compiled(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    found = [float(x) for x in losses]
    return found, (time.perf_counter() - start) / (steps - steps // 2)


if __name__ == "__main__":
    main()
