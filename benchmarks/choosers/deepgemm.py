"""The heuristic of DeepGEMM for Hopper as a chooser, after its sources (deepseek-ai/DeepGEMM at 54e22612,
``csrc/jit_kernels/heuristics/sm90.hpp``), for its dense bf16 kernels and its block-scaled e4m3 kernels.

It lists tiles and clusters of at most two CTAs, estimates cycles of L2 and shared memory of each, divides them by the
share of SMs that the waves use, and takes the first with the fewest. It never splits K, and never runs the transpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from benchmarks.choosers.cases import Answer, Case, KernelProperties

from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.kernels.faults import is_aligned

SHARED_BYTES, BARRIER_BYTES, MOST_STAGES = 232448, 256, 16
WGMMA_M = 64
L2_BYTES_PER_SM, MOST_L2_BYTES, SHARED_BYTES_PER_SM = 64, 8e6 / 1.3e3, 128
"""Bytes per cycle that an SM loads from L2, that L2 delivers, and that an SM's shared memory moves."""


class _Sizes(NamedTuple):
    """What the estimates need of a problem."""

    problem: GemmProblem
    element: int
    """Bytes of an element of A and B."""
    d_element: int
    """Bytes of an element of D."""
    is_scaled: bool


def deepgemm(case: Case) -> Answer:
    """The tile, cluster and stages of DeepGEMM's kernel; None where it has no dense kernel for the types,
    and for operands that TMA cannot load."""
    p = case.problem
    scales = {("bf16", "none"): False, ("e4m3", "1x128"): True}
    is_scaled = scales.get((p.a_dtype, p.a_scale))
    if is_scaled is None or p.d_dtype not in ("bf16", "f32") or p.batch > 1:
        return None
    if not is_aligned(p) or (is_scaled and (p.a_major, p.b_major) != ("k", "k")):
        return None
    sizes = _Sizes(p, DTYPES[p.a_dtype].bits // 8, DTYPES[p.d_dtype].bits // 8, is_scaled)
    sms = figures(case.gpu).sms
    return min(_layouts(sizes), key=lambda wanted: _cycles(sizes, wanted, sms), default=None)


def _layouts(sizes: _Sizes) -> Iterator[KernelProperties]:
    """The tiles and clusters that it considers, in its order."""
    p, tile_k = sizes.problem, 128 // sizes.element
    rows = [64, 128, *(most for most in (16, 32) if p.m <= most), *([256] if p.d_dtype != "f32" else [])]
    for cluster in ((1, 1), (1, 2), (2, 1)):
        for m in rows:
            for n in range(16, (192 if sizes.is_scaled else 256) + 1, 16):
                over = n - tile_k
                if sizes.is_scaled and over > 0 and n % over and tile_k % over:
                    continue
                widths = (tile_k if p.a_major == "k" else m, tile_k if p.b_major == "k" else n)
                if (m > 128 and n > 128) or any(width * sizes.element % 64 for width in widths):
                    continue
                stages = _stages(sizes, m, n, tile_k)
                if stages >= (4 if m * n < 128 * 192 else 3):
                    yield KernelProperties((m, n, tile_k), cluster, stages)


def _stages(sizes: _Sizes, m: int, n: int, tile_k: int) -> int:
    """The stages that fit in shared memory beside D, barriers and scales."""
    fixed = ceil(m * n * sizes.d_element / 1024) * 1024 + BARRIER_BYTES
    of_stage = (m + n) * tile_k * sizes.element
    if sizes.is_scaled:
        of_stage += ceil(m * 4 / 128) * 128
        fixed += ceil(ceil(sizes.problem.k / tile_k) * 4 * (2 if tile_k % n else 1) / 8) * 8
    return min((SHARED_BYTES - fixed) // of_stage, MOST_STAGES)


def _cycles(sizes: _Sizes, wanted: KernelProperties, sms: int) -> float:
    """Its estimate of cycles. Infinite for clusters in a single wave."""
    p, (m, n, _), (along_m, along_n) = sizes.problem, wanted.tile, wanted.cluster
    tiles = ceil(p.m / m) * ceil(p.n / n)
    waves = ceil(tiles / sms)
    if along_m * along_n > 1 and waves <= 1:
        return float("inf")
    stored = m * n * sizes.d_element * (2 if p.c_dtype else 1)
    loaded = p.k * sizes.element
    l2 = loaded * (m // along_n + n // along_m) + stored
    shared = loaded * (m + n) + loaded * (max(WGMMA_M, m) + n) + m * n * sizes.d_element + stored
    l2_cycles = l2 * tiles // int(min(L2_BYTES_PER_SM * sms, MOST_L2_BYTES))
    shared_cycles = shared * tiles // (SHARED_BYTES_PER_SM * sms)
    return int(max(l2_cycles, shared_cycles) * waves * sms / tiles)
