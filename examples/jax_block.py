"""Train a transformer block in JAX with `jit` and `grad`: first with XLA's GEMMs, then with gemmill's.

    python examples/jax_block.py                        # on a GPU: 2048 tokens of width 2048
    python examples/jax_block.py --device cpu --tiny    # without a GPU: tries the program

Needs only JAX. gemmill computes the products of the forward and the backward pass, with biases, activations and
residuals in their epilogues. Prints losses and milliseconds per step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp

import gemmill.jax

Parameters = dict[str, Any]


def block(linear: Callable[..., Any], x: Any, p: Parameters, heads: int) -> Any:
    """Attention and an MLP with residual connections, applied to x (batch, tokens, width)."""

    def norm(x: Any) -> Any:
        x32 = x.astype(jnp.float32)
        return (x32 * jax.lax.rsqrt((x32**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)

    batch, tokens, width = x.shape
    q, k, v = (y.reshape(batch, tokens, heads, -1) for y in jnp.split(linear(norm(x), p["qkv"]), 3, axis=-1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, tokens, width)
    x = linear(mixed, p["project"], residual=x)
    return linear(linear(norm(x), p["up"], bias=p["bias"]), p["down"], residual=x)


def with_xla(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
    """A linear layer with XLA."""
    d = x @ w
    if bias is not None:
        d = jax.nn.silu(d + bias)
    return d if residual is None else d + residual


def with_gemmill(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
    """The same layer with gemmill, in one kernel."""
    if bias is not None:
        return gemmill.jax.matmul(x, w, epilogue="d = silu(acc + bias[n])", bias=bias)
    return gemmill.jax.matmul(x, w, c=residual)


def train(linear: Callable[..., Any], steps: int, shape: tuple[int, int, int], heads: int) -> tuple[list[float], float]:
    """Train the block; returns the losses, and the median milliseconds of a step, without the first."""
    batch, tokens, width = shape
    keys = jax.random.split(jax.random.key(0), 6)

    def weights(key: Any, *shape: int) -> Any:
        return (jax.random.normal(key, shape) * shape[0] ** -0.5).astype(jnp.bfloat16)

    parameters = {
        "qkv": weights(keys[0], width, 3 * width),
        "project": weights(keys[1], width, width),
        "up": weights(keys[2], width, 4 * width),
        "bias": jnp.zeros(4 * width, jnp.bfloat16),
        "down": weights(keys[3], 4 * width, width),
    }
    x = jax.random.normal(keys[4], (batch, tokens, width)).astype(jnp.bfloat16)
    target = jnp.roll(x, 1, axis=-1)

    def step(parameters: Parameters) -> tuple[Any, Parameters]:
        def loss(p: Parameters) -> Any:
            return ((block(linear, x, p, heads) - target).astype(jnp.float32) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        return value, jax.tree.map(
            lambda p, g: (p - 0.5 * g.astype(jnp.float32)).astype(p.dtype), parameters, gradients
        )

    step_once = jax.jit(step)
    losses, times = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        value, parameters = jax.block_until_ready(step_once(parameters))
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(float(value))
    return losses, sorted(times[1:])[len(times[1:]) // 2]


def main() -> None:
    """Train with both, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="small sizes for a CPU")
    given = parser.parse_args()
    if given.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        gemmill.jax.run_on_cpu()
    shape, heads = ((2, 16, 64), 2) if given.tiny else ((4, 512, 2048), 16)
    found = {name: train(f, given.steps, shape, heads) for name, f in (("XLA", with_xla), ("gemmill", with_gemmill))}
    for name, (losses, milliseconds) in found.items():
        print(f"{name:8} loss {losses[0]:.4f} -> {losses[-1]:.4f}, {milliseconds:.2f} ms per step")


if __name__ == "__main__":
    main()
