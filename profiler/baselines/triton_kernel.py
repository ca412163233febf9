"""The kernel of the ``triton`` baseline. Importing it imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl

BAND = tl.constexpr(8)
TILE_K_BITS = tl.constexpr(1024)
"""K of a stage in bits: the widest swizzle of TMA, 128 bytes."""


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]  # Triton evaluates annotations
    a,
    b,
    d,
    M,
    N,
    K,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """D (M, N) = A (M, K) B^T with B (N, K), all given as TMA descriptors. Persistent: each program loops over tiles.

    Programs process groups of BAND rows of tiles, column by column, so that concurrent tiles share operands in L2. A
    stage has TILE_K_BITS of K.
    """
    SUMS: tl.constexpr = tl.int32 if a.dtype == tl.int8 else tl.float32
    TILE_K: tl.constexpr = TILE_K_BITS // a.dtype.primitive_bitwidth
    rows = tl.cdiv(M, TILE_M)
    columns = tl.cdiv(N, TILE_N)
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=True):
        first = tile // (BAND * columns) * BAND
        height = min(BAND, rows - first)
        inside = tile % (BAND * columns)
        row = (first + inside % height) * TILE_M
        column = inside // height * TILE_N
        sums = tl.zeros((TILE_M, TILE_N), SUMS)
        for k in range(0, K, TILE_K):
            sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums, out_dtype=SUMS)
        d.store([row, column], sums.to(d.dtype))
