"""Modules drawn by a seed, of what models are made of: layers, activations, gates, residuals, norms, attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
functional = nn.functional

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "squared relu": lambda x: functional.relu(x).square(),
    "leaky relu": lambda x: functional.leaky_relu(x, 0.125),
    "hardswish": functional.hardswish,
    "elu": functional.elu,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "softcap": lambda x: 2 * torch.tanh(x / 2),
    "absolute": torch.abs,
    "none": lambda x: x,
}


class Layer(nn.Module):  # type: ignore[misc]
    """A linear layer with what may stand around it."""

    def __init__(self, draw: random.Random, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out, bias=draw.random() < 0.6)
        self.activation = ACTIVATIONS[draw.choice([*ACTIVATIONS])]
        self.scale = draw.choice([None, 0.5, "vector", "row"])
        self.vector = nn.Parameter(torch.rand(out) + 0.5)
        self.rounds = draw.random() < 0.3
        self.residual = width == out and draw.random() < 0.6

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        if self.scale == "vector":
            y = y * self.vector
        elif self.scale == "row":
            y = y * x[..., :1].sigmoid()
        elif self.scale is not None:
            y = y * self.scale
        y = self.activation(y)
        if self.rounds:
            y = y.float().to(x.dtype)
        return x + y if self.residual else y


class Gated(nn.Module):  # type: ignore[misc]
    """A gated MLP."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        inner = draw.choice([24, 32, 48])
        bias = draw.random() < 0.3
        self.gate, self.up = (nn.Linear(width, inner, bias=bias) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[draw.choice(["silu", "gelu", "gelu_tanh", "sigmoid", "relu"])]

    def forward(self, x: Any) -> Any:
        return x + self.down(self.activation(self.gate(x)) * self.up(x))


class Attention(nn.Module):  # type: ignore[misc]
    """Attention of products and a softmax, perhaps with a mask."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        self.heads = draw.choice([1, 2, 4])
        self.qkv = nn.Linear(width, 3 * width, bias=draw.random() < 0.5)
        self.out = nn.Linear(width, width, bias=False)
        self.masks = draw.random() < 0.5

    def forward(self, x: Any) -> Any:
        batch, rows, width = x.shape
        q, k, v = self.qkv(x).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        scores = (q @ k.mT) * (width // self.heads) ** -0.5
        if self.masks:
            scores = scores + torch.full((rows, rows), -1e4, dtype=x.dtype, device=x.device).triu(1)
        y = torch.softmax(scores.float(), -1).to(x.dtype) @ v
        return x + self.out(y.transpose(1, 2).reshape(batch, rows, width))


class Products(nn.Module):  # type: ignore[misc]
    """Products with factors, and sums of two."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, width, width) / width**0.5)
        self.bias = nn.Parameter(torch.randn(width))
        self.factors = draw.choice([(1, 1), (0.5, 2), (1, 0.25), (0, 0.5)])
        self.joins = draw.choice([torch.add, torch.sub, torch.mul, torch.maximum])

    def forward(self, x: Any) -> Any:
        rows = x.flatten(0, -2)
        beta, alpha = self.factors
        y = torch.addmm(self.bias, rows, self.weight[0], beta=beta, alpha=alpha)
        return self.joins(y, torch.tanh(rows @ self.weight[1])).view(x.shape)


def random_module(seed: int) -> tuple[Any, Any]:
    """A module, in f32 on the CPU, and an input of (batch, rows, width)."""
    draw = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = draw.choice([16, 32, 40])
        parts: list[Any] = []
        for _ in range(draw.randint(1, 3)):
            kind = draw.choice([Layer, Layer, Gated, Attention, Products])
            if draw.random() < 0.5:
                parts.append(nn.LayerNorm(width) if draw.random() < 0.5 else nn.RMSNorm(width, eps=1e-5))
            parts.append(Layer(draw, width, width) if kind is Layer else kind(draw, width))
        if draw.random() < 0.5:
            parts.append(Layer(draw, width, draw.choice([8, 24, 64])))
        return nn.Sequential(*parts), torch.randn(draw.choice([1, 2, 3]), draw.choice([1, 5, 16]), width)
