"""The launches of the kernels that multiply few tokens by their adapters (emitters/adapting.py)."""

from __future__ import annotations

from functools import partial

from gemmill.emitters import adapting
from gemmill.library.dtypes import DTYPES
from gemmill.runtime.launch.routing import Kernel, TokenLaunch, addresses_of
from gemmill.runtime.operands.lora import BoundAdaptation
from gemmill.runtime.operands.routing import strides_of
from gemmill.runtime.operands.tensors import TensorView


class ShrinkLaunch(TokenLaunch):
    """Multiplies tokens by first factors. Addresses: those of x, the factors, the ids or places, the offsets and the
    sums."""

    def __init__(self, bound: BoundAdaptation, stream: int) -> None:
        kind = bound.kind.dtype, bound.kind.routed
        kernel = Kernel(adapting.SHRINK_ENTRY, kind, partial(adapting.emit_shrink, *kind), adapting.THREADS)
        super().__init__(bound.x.device, stream, kernel, *shrink_job(bound))


class ExpandLaunch(TokenLaunch):
    """Multiplies sums by second factors. Addresses: those of the sums, the factors, the ids or places, the offsets, the
    scales, y and the result."""

    def __init__(self, bound: BoundAdaptation, stream: int) -> None:
        kind = bound.kind
        kernel = Kernel(adapting.EXPAND_ENTRY, kind, partial(adapting.emit_expand, kind), adapting.THREADS)
        super().__init__(bound.x.device, stream, kernel, *expand_job(bound))


def shrink_job(bound: BoundAdaptation) -> tuple[bytes, int]:
    """Return the parameters of the first kernel, and its number of CTAs."""
    addresses = addresses_of(bound.x, bound.a, bound.ids, bound.offsets, bound.inner)
    tokens, hidden = bound.x.shape
    adapters, rank, _ = bound.a.shape
    strides = strides_of(bound.x).row, *_steps(bound.a)
    parts = rank // adapting.RANKS_OF_CTA
    counts = hidden * DTYPES[bound.x.dtype].bytes // 16, adapters, rank, parts, bound.step, 0
    return adapting.SHRINK_JOB.pack(*addresses, *strides, *counts), tokens * parts


def expand_job(bound: BoundAdaptation) -> tuple[bytes, int]:
    """Return the parameters of the second kernel, and its number of CTAs."""
    addresses = addresses_of(bound.inner, bound.b, bound.ids, bound.offsets, bound.scales, bound.y, bound.out)
    tokens, columns = bound.out.shape
    adapters, _, rank = bound.b.shape
    of_scales = bound.scales.strides[0] * DTYPES[bound.scales.dtype].bytes if bound.scales else 0
    strides = *_steps(bound.b), of_scales, strides_of(bound.y).row, strides_of(bound.out).row
    parts = -(-columns // (2 * adapting.THREADS))
    counts = columns // 2, adapters, rank, parts, bound.step
    return adapting.EXPAND_JOB.pack(*addresses, *strides, *counts, bound.scale), tokens * parts


def _steps(factor: TensorView) -> list[int]:
    """Return the bytes from one adapter to the next, and between rows."""
    return [step * DTYPES[factor.dtype].bytes for step in factor.strides[:2]]
