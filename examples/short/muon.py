"""An optimizer like Muon: weights of one shape are orthogonalised together, and symmetric products computed by half.

    python examples/short/muon.py

Needs a GPU and PyTorch. It trains a linear model beside `torch.optim.Muon`, which takes the same steps one by one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import torch

import gemmill.torch


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Jordan et al., 2024), for matrices."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float = 1e-3, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                self._update(weights, group["lr"], group["momentum"])

    def _update(self, weights: list[torch.nn.Parameter], lr: float, momentum: float) -> None:
        gradients = [weight.grad for weight in weights]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["average"] = torch.zeros_like(weight)
        averages = [self.state[weight]["average"] for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        updates = gemmill.torch.newton_schulz(torch.stack(torch._foreach_lerp(gradients, averages, momentum)))
        rows, columns = weights[0].shape
        torch._foreach_add_(weights, [*updates.to(weights[0].dtype)], alpha=-lr * max(1, rows / columns) ** 0.5)


def train(make: Callable[..., torch.optim.Optimizer], steps: int = 20) -> tuple[list[float], float]:
    """The losses of a stack of linear layers, and milliseconds per step of the optimizer."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8))).cuda()
    optimizer = make(layers.parameters(), lr=0.01)
    x, y = torch.randn(2, 4096, 1024, device="cuda")
    losses, seconds = [], 0.0
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(layers(x), y)
        optimizer.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))  # waits for the GPU
        start = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        seconds = min(seconds or 1.0, time.perf_counter() - start)
    return losses, 1000 * seconds


of_torch = train(lambda p, lr: torch.optim.Muon(p, lr=lr, weight_decay=0.0)) if hasattr(torch.optim, "Muon") else None
losses, milliseconds = train(Muon)
print(f"gemmill: loss {losses[0]:.4f} to {losses[-1]:.4f}, {milliseconds:.2f} ms per step of the optimizer")
assert losses[-1] < losses[0], "it does not learn"
if of_torch:
    wanted, longer = of_torch
    print(f"PyTorch: loss {wanted[0]:.4f} to {wanted[-1]:.4f}, {longer:.2f} ms per step of the optimizer")
    assert abs(losses[-1] - wanted[-1]) < 0.02 * wanted[-1], "the two learn differently"
