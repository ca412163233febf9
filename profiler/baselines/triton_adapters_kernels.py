"""The kernels of the Triton baseline of low-rank adapters. Importing it imports Triton.

Tokens are sorted by adapter beforehand: ``order`` has the tokens of each adapter, from its entry of ``begins`` on.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def shrink(  # type: ignore[no-untyped-def]  # Triton evaluates annotations
    x,
    a,
    sums,
    order,
    begins,
    counts,
    K,
    RANK: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """Multiply the tokens of an adapter by its first factor; programs of several slices of K add to ``sums``."""
    part, tile, adapter = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(counts + adapter)
    if tile * TILE_M >= count:
        return
    i = tile * TILE_M + tl.arange(0, TILE_M)
    token = tl.load(order + tl.load(begins + adapter) + i, mask=i < count, other=0)
    r = tl.arange(0, TILE_R)
    acc = tl.zeros((TILE_M, TILE_R), tl.float32)
    for first in range(part * TILE_K, K, SLICES * TILE_K):
        k = first + tl.arange(0, TILE_K)
        mask_x, mask_a = (i < count)[:, None] & (k < K)[None, :], (r < RANK)[None, :] & (k < K)[:, None]
        rows = tl.load(x + token[:, None] * K + k[None, :], mask=mask_x, other=0.0)
        columns = tl.load(a + adapter * RANK * K + r[None, :] * K + k[:, None], mask=mask_a, other=0.0)
        acc = tl.dot(rows, columns, acc)
    at, mask = sums + token[:, None] * RANK + r[None, :], (i < count)[:, None] & (r < RANK)[None, :]
    if SLICES == 1:
        tl.store(at, acc, mask=mask)
    else:
        tl.atomic_add(at, acc, mask=mask, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def expand(  # type: ignore[no-untyped-def]
    sums,
    b,
    y,
    out,
    order,
    begins,
    counts,
    N,
    scale,
    RANK: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_R: tl.constexpr,
):
    """Multiply the sums of an adapter's tokens by its second factor, and add them to ``y``."""
    column, tile, adapter = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(counts + adapter)
    if tile * TILE_M >= count:
        return
    i = tile * TILE_M + tl.arange(0, TILE_M)
    token = tl.load(order + tl.load(begins + adapter) + i, mask=i < count, other=0)
    r, n = tl.arange(0, TILE_R), column * TILE_N + tl.arange(0, TILE_N)
    mask_r = (r < RANK)[:, None] & (n < N)[None, :]
    rows = tl.load(
        sums + token[:, None] * RANK + r[None, :], mask=(i < count)[:, None] & (r < RANK)[None, :], other=0.0
    )
    columns = tl.load(b + adapter * N * RANK + n[None, :] * RANK + r[:, None], mask=mask_r, other=0.0)
    acc = tl.dot(rows.to(columns.dtype), columns) * scale
    at, mask = token[:, None] * N + n[None, :], (i < count)[:, None] & (n < N)[None, :]
    result = tl.load(y + at, mask=mask, other=0.0) + acc
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)
