"""Narrow weights for GPU tests, what they stand for computed as kernels compute it, and a check of one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.gpu.harness import Case, Guarded, fill, guarded, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.scales import dtype_of_groups
from gemmill.library.dtypes import DTYPES, FP8
from gemmill.library.e2m1 import MX_BLOCK, VALUES, from_fragment_order
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry


@dataclass(frozen=True)
class Weights:
    """Narrow weights (N, K) in memory, their scales and zero points (K / group, N), and what they stand for."""

    packed: Guarded
    dtype: str
    scale: Guarded | None
    zero: Guarded | None
    values: Any
    """(N, K) in the wide type, or in f32 beside e4m3, computed as kernels do."""

    def arguments(self, name: str) -> dict[str, Any]:
        """Keyword arguments of ``matmul`` for operand ``name``."""
        found = {f"{name}_dtype": self.dtype}
        for kind, groups in (("scale", self.scale), ("zero", self.zero)):
            if groups is not None:
                values = groups.tensor.view(torch.float8_e8m0fnu) if self.dtype == "e2m1" else groups.tensor
                found[f"{name}_{kind}"] = values if name == "b" else values.T
        return found


def integers(low: int, high: int, shape: tuple[int, ...], seed: int) -> Any:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator, device="cuda")


def make_weights(config: GemmConfig, n: int, k: int, *, exact: bool, seed: int = 0) -> Weights:
    """Random weights of every finite value their type has. ``exact``: such that sums of products are exact in f32."""
    dtype, bits = config.a.dtype, config.a.type.bits
    if dtype == "e2m1":
        return _e2m1_weights(config, n, k, exact=exact, seed=seed)
    scales = dtype_of_groups(dtype, config.b.dtype)
    wide = getattr(torch, DTYPES[scales].torch)
    packed = guarded(n, -(-k * bits // 8), "u8")
    packed.tensor.copy_(integers(0, 255, tuple(packed.tensor.shape), seed))
    if dtype == "e4m3":
        packed.tensor[packed.tensor & 0x7F == 0x7F] = 0x3A
        values = packed.tensor.view(torch.float8_e4m3fn).double()
    elif dtype == "e5m2":
        packed.tensor[packed.tensor & 0x7C == 0x7C] = 0x3A
        values = packed.tensor.view(torch.float8_e5m2).double()
    elif bits == 8:
        values = packed.tensor.view(getattr(torch, DTYPES[dtype].torch)).double()
    else:
        nibbles = torch.stack((packed.tensor & 15, packed.tensor >> 4), dim=-1).reshape(n, -1)[:, :k].int()
        values = (nibbles - 16 * (nibbles > 7) * (dtype == "s4")).double()
    if config.a.scale == "none":
        return Weights(packed, dtype, None, None, values.to(wide))

    group = int(config.a.scale.removeprefix("1x").removesuffix("z"))
    groups = -(-k // group)
    scale = guarded(groups, n, scales)
    zero = guarded(groups, n, config.b.dtype) if config.a.scale.endswith("z") else None
    scale.tensor.copy_(
        2.0 ** integers(-2, 1, (groups, n), seed + 1) if exact else torch.rand(groups, n, device="cuda") - 0.5
    )
    if zero is not None:
        fill(zero.tensor, "random", seed + 2, config.b.dtype)
        zero.tensor.mul_(4)
        if exact:
            zero.tensor.copy_(integers(0, 15, (groups, n), seed + 2))
        values = (values - spread(zero.tensor, group, k)).to(wide).double()
    values = (values * spread(scale.tensor, group, k)).to(wide)
    return Weights(packed, dtype, scale, zero, values)


def _e2m1_weights(config: GemmConfig, n: int, k: int, *, exact: bool, seed: int) -> Weights:
    wide = getattr(torch, DTYPES[config.b.dtype].torch)
    packed, scale = guarded(n, k // 2, "u8"), guarded(k // MX_BLOCK, n, "u8")
    packed.tensor.copy_(integers(0, 255, (n, k // 2), seed))
    scale.tensor.copy_(integers(125 if exact else 110, 128, (k // MX_BLOCK, n), seed + 1))
    codes = from_fragment_order(packed.tensor.int(), torch).long()
    values = torch.tensor(VALUES, dtype=torch.float64, device="cuda")[codes]
    values *= spread(scale.tensor.view(torch.float8_e8m0fnu).float(), MX_BLOCK, k)
    return Weights(packed, config.a.dtype, scale, None, values.to(wide))


def depth(config: GemmConfig, k: int) -> int:
    """The least K, ``k`` or more, for which there are weights."""
    return -(-k // MX_BLOCK) * MX_BLOCK if config.a.dtype == "e2m1" else k


def spread(groups: Any, group: int, k: int) -> Any:
    """Values of groups (K / group, N) for every element, (N, K)."""
    return groups.double().T.repeat_interleave(group, dim=1)[:, :k]


def check(
    config: GemmConfig, m: int, n: int, k: int, registry: Registry, *, exact: bool, swapped: bool = True, seed: int = 0
) -> None:
    """Run activations (m, k) times the transpose of weights (n, k), and check every element of D.

    Kernels take narrow A; ``swapped`` calls them with a narrow ``b``.
    """
    exact, k = exact and config.a.dtype not in FP8, depth(config, k)
    weights = make_weights(config, n, k, exact=exact, seed=seed)
    k_major = config.b.major == "k"
    d_major = (config.d.major == "m") == swapped  # whether the caller's D is n-major
    activations = guarded(m, k, config.b.dtype, columns_contiguous=k_major)
    data = "integers" if exact else "random"
    fill(activations.tensor, data, seed + 3, config.b.dtype)
    shape = (m, n) if swapped else (n, m)
    c = guarded(*shape, config.c.dtype, columns_contiguous=(config.c.major == "m") == swapped) if config.c else None
    if c is not None and config.c is not None:
        fill(c.tensor, data, seed + 4, config.c.dtype)
    d = guarded(*shape, config.d.dtype, columns_contiguous=d_major)
    values = Guarded(weights.values, weights.values.T if swapped else weights.values)
    right = activations if swapped else Guarded(activations.buffer, activations.tensor.T)
    left, right = (right, values) if swapped else (values, right)
    wide, major = config.b.dtype, "n" if d_major else "m"
    problem = GemmProblem(
        m=shape[0],
        n=shape[1],
        k=k,
        batch=1,
        a_dtype=wide,
        a_major="k",
        b_dtype=wide,
        b_major="k",
        accumulator="f32",
        d_dtype=config.d.dtype,
        d_major=major,
        promote=config.promote,
        c_dtype=config.c.dtype if config.c else None,
    )
    # Sums of the largest e5m2 would not be finite in f16.
    alpha = 2.0**-8 if (config.a.dtype, config.d.dtype) == ("e5m2", "f16") else 1.0
    case = Case(problem, left, right, c, d, {}, alpha, 0.5 if c else 0.0, exact)
    inputs = [x for x in (weights.packed, weights.scale, weights.zero, activations, c) if x is not None]
    before = [x.buffer.clone() for x in inputs]
    a, b = (activations.tensor, weights.packed.tensor.T) if swapped else (weights.packed.tensor, activations.tensor.T)
    options = weights.arguments("b" if swapped else "a") | ({"c": c.tensor, "beta": 0.5} if c else {})
    with gemmill.plan(a, b, out=d.tensor, alpha=alpha, registry=registry, kernel=config, **options) as launch:
        launch()
        torch.cuda.synchronize()
    assert all(torch.equal(x.buffer, old) for x, old in zip(inputs, before, strict=True)), "an operand was written"
    case.check()
