"""The kernels of the Triton baseline of expert layers. Importing it imports Triton.

A slot is one of the experts of a token: slot s belongs to token s // SLOTS. Slots are sorted by their experts, and the
slots of each expert are padded to whole tiles, so that a tile has one expert. A padded place holds the number of slots.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def count(ids, counts, total, STEP: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton evaluates annotations
    """Count the slots of each expert; one program for each."""
    expert = tl.program_id(0)
    found = tl.zeros((STEP,), tl.int32)
    for first in range(0, total, STEP):
        at = first + tl.arange(0, STEP)
        found += (tl.load(ids + at, at < total, -1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found))


@triton.jit  # type: ignore[untyped-decorator]
def align(  # type: ignore[no-untyped-def]
    ids,
    counts,
    sorted_slots,
    tile_experts,
    height,
    total,
    EXPERTS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE_M: tl.constexpr,
    STEP: tl.constexpr,
):
    """Sort slots by expert, padded to tiles; one program for each expert. ``height`` gets the number of rows with
    padding. WIDTH is a power of two, at least EXPERTS."""
    expert = tl.program_id(0)
    every = tl.arange(0, WIDTH)
    sizes = tl.load(counts + every, every < EXPERTS, 0)
    padded = (sizes + TILE_M - 1) // TILE_M * TILE_M
    start = tl.sum(tl.where(every < expert, padded, 0))
    end = start + tl.sum(tl.where(every == expert, padded, 0))
    if expert == EXPERTS - 1:
        tl.store(height, end)
    place = start
    for first in range(0, total, STEP):
        at = first + tl.arange(0, STEP)
        mine = (tl.load(ids + at, at < total, -1) == expert).to(tl.int32)
        tl.store(sorted_slots + place + tl.cumsum(mine, 0) - 1, at, mine == 1)
        place += tl.sum(mine)
    padding = place + tl.arange(0, TILE_M)
    tl.store(sorted_slots + padding, tl.zeros((TILE_M,), tl.int32) + total, padding < end)
    for tile in range(start // TILE_M, end // TILE_M):
        tl.store(tile_experts + tile, expert)


BLOCK = tl.constexpr(128)
"""Elements along K, and rows of B, that share a scale."""


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    a,
    b,
    d,
    a_scale,
    b_scale,
    weights,
    sorted_slots,
    tile_experts,
    height,
    N,
    K,
    total,
    SLOTS,
    WEIGHTED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    SWIZZLE: tl.constexpr,
    EVEN: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Row s of D (total, N) = row s // SLOTS of A (..., K) times B^T of the expert of slot s, with B (experts, N, K);
    times the weight of the slot where WEIGHTED. EVEN: TILE_K divides K. SCALED: each block of 128 along K of A has a
    scale, (..., K / 128), and each block of 128 x 128 of B, (experts, N / 128, K / 128); TILE_K is 128.

    Programs process groups of SWIZZLE rows of tiles, column by column, so that concurrent tiles share operands in L2.
    """
    program = tl.program_id(0)
    columns = tl.cdiv(N, TILE_N)
    first = program // (SWIZZLE * columns) * SWIZZLE
    of_group = min(SWIZZLE, tl.num_programs(0) // columns - first)
    inside = program % (SWIZZLE * columns)
    tile = first + inside % of_group
    if tile * TILE_M >= tl.load(height):
        return
    slots = tl.load(sorted_slots + tile * TILE_M + tl.arange(0, TILE_M))
    used = slots < total
    expert = tl.load(tile_experts + tile).to(tl.int64)
    n = inside // of_group * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    a_at = a + (slots // SLOTS).to(tl.int64)[:, None] * K + k[None, :]
    b_at = b + expert * N * K + (n % N)[None, :] * K + k[:, None]
    sums = tl.zeros((TILE_M, TILE_N), tl.float32)
    if SCALED:
        of_a = a_scale + (slots // SLOTS).to(tl.int64) * (K // BLOCK)
        of_b = b_scale + (expert * (N // BLOCK) + (n % N) // BLOCK) * (K // BLOCK)
    for first_k in range(0, K, TILE_K):
        if SCALED:
            products = tl.dot(tl.load(a_at, used[:, None], 0.0), tl.load(b_at))
            block = first_k // BLOCK
            sums += products * tl.load(of_a + block, used, 0.0)[:, None] * tl.load(of_b + block)[None, :]
        elif EVEN:
            sums = tl.dot(tl.load(a_at, used[:, None], 0.0), tl.load(b_at), sums)
        else:
            left = K - first_k
            x = tl.load(a_at, used[:, None] & (k < left)[None, :], 0.0)
            sums = tl.dot(x, tl.load(b_at, (k < left)[:, None], 0.0), sums)
        a_at += TILE_K
        b_at += TILE_K
    if WEIGHTED:
        sums *= tl.load(weights + slots, used, 0.0)[:, None]
    d_at = d + slots.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(d_at, sums.to(d.dtype.element_ty), used[:, None] & (n < N)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def activate(z, h, h_scale, total, F, ROWS: tl.constexpr, STEP: tl.constexpr, SCALED: tl.constexpr):  # type: ignore[no-untyped-def]
    """h (total, F) = silu(gate) * up, where z (total, 2 F) has gate in its first F columns. SCALED: h is divided by the
    scale of each block of a row, (total, F / 128), which is written too; STEP is 128."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * STEP + tl.arange(0, STEP))[None, :]
    inside = (rows < total) & (columns < F)
    gate = tl.load(z + rows * 2 * F + columns, inside, 0.0).to(tl.float32)
    up = tl.load(z + rows * 2 * F + F + columns, inside, 0.0).to(tl.float32)
    values = gate * tl.sigmoid(gate) * up
    if SCALED:
        scale = tl.maximum(tl.max(tl.abs(values), 1, keep_dims=True) / 448.0, 1e-12)
        values = values / scale
        tl.store(h_scale + rows * (F // BLOCK) + tl.program_id(1), scale, rows < total)
    tl.store(h + rows * F + columns, values.to(h.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def add(y, out, H, SLOTS: tl.constexpr, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row t of ``out`` (tokens, H) is the sum of rows SLOTS * t to SLOTS * t + SLOTS - 1 of y."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * STEP + tl.arange(0, STEP)
    sums = tl.zeros((STEP,), tl.float32)
    for slot in tl.static_range(SLOTS):
        sums += tl.load(y + (token * SLOTS + slot) * H + columns, columns < H, 0.0).to(tl.float32)
    tl.store(out + token * H + columns, sums.to(out.dtype.element_ty), columns < H)
