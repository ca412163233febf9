"""The launches of the kernels that multiply tokens by their adapters (emitters/shrinking.py, emitters/expanding.py)."""

from __future__ import annotations

from ctypes import c_float
from functools import partial

from gemmill.emitters import expanding, shrinking
from gemmill.emitters.adapting import THREADS, WARPS
from gemmill.library.dtypes import DTYPES
from gemmill.runtime.launch.routing import Kernel, TokenLaunch, addresses_of
from gemmill.runtime.operands.lora import BoundAdaptation
from gemmill.runtime.operands.routing import strides_of
from gemmill.runtime.operands.tensors import TensorView


class ShrinkLaunch(TokenLaunch):
    """Multiplies tokens by first factors. Addresses: those of x, the factors, the ids or offsets, the rows and the
    sums."""

    def __init__(self, bound: BoundAdaptation, stream: int) -> None:
        kind = bound.shrinking
        kernel = Kernel(shrinking.ENTRY, kind, partial(shrinking.emit_shrink, kind), THREADS)
        super().__init__(bound.x.device, stream, kernel, *shrink_job(bound))


class ExpandLaunch(TokenLaunch):
    """Multiplies sums by second factors. Addresses: those of the sums, the factors, the ids or offsets, the rows, the
    scales, y and the result."""

    def __init__(self, bound: BoundAdaptation, stream: int) -> None:
        kind = bound.expansion
        kernel = Kernel(expanding.ENTRY, kind, partial(expanding.emit_expand, kind), THREADS)
        super().__init__(bound.x.device, stream, kernel, *expand_job(bound))


def shrink_job(bound: BoundAdaptation) -> tuple[bytes, int]:
    """Return the parameters of the first kernel, and its number of CTAs."""
    addresses = addresses_of(bound.x, bound.a, bound.ids, bound.rows, bound.inner)
    tokens, hidden = bound.x.shape
    adapters, rank, _ = bound.a.shape
    kind, (_, slices, shares, _) = bound.shrinking, bound.division
    strides = strides_of(bound.x).row, *_steps(bound.a), _slice_bytes(bound.inner)
    steps = -(-hidden // (shrinking.STEP * kind.unroll * WARPS * slices)) * kind.unroll
    vectors = hidden * DTYPES[bound.x.dtype].bytes // 16
    job = shrinking.JOB.pack(*addresses, *strides, tokens, adapters, vectors, steps, slices, shares)
    return job, bound.division.tiles(tokens) * slices * (rank // kind.ranks) * shares


def expand_job(bound: BoundAdaptation) -> tuple[bytes, int]:
    """Return the parameters of the second kernel, and its number of CTAs."""
    addresses = addresses_of(bound.inner, bound.b, bound.ids, bound.rows, bound.scales, bound.y, bound.out)
    tokens, columns = bound.out.shape
    adapters = bound.b.shape[0]
    of_scales = bound.scales.strides[0] * DTYPES[bound.scales.dtype].bytes if bound.scales else 0
    of_rows = strides_of(bound.y).row, strides_of(bound.out).row
    strides = *_steps(bound.b), of_scales, *of_rows, _slice_bytes(bound.inner)
    across, shares = -(-columns // expanding.COLUMNS), bound.division.shares_of_columns
    scale = c_float(bound.scale).value  # infinity where pack would raise an error
    job = expanding.JOB.pack(*addresses, *strides, tokens, adapters, columns, across, shares, scale)
    return job, bound.division.tiles(tokens) * across * shares


def _slice_bytes(inner: TensorView) -> int:
    return inner.strides[0] * DTYPES[inner.dtype].bytes


def _steps(factor: TensorView) -> list[int]:
    """Return the bytes from one adapter to the next, and between rows."""
    return [step * DTYPES[factor.dtype].bytes for step in factor.strides[:2]]
