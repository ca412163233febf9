"""What crosses DRAM: the operands, again where they outgrow L2, and operands that are realigned before a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import L2_SECTOR, Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.legality.quantities import TMA_ALIGN, align_up
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Floats
    from gemmill.runtime.select.cost.tiling import Work

# Fitted to measurements on an H200 (docs/performance).
_L2_SHARE = 0.85
"""Part of L2 that operands can stay in."""
_REALIGNED_KEPT = 0.45
"""Part of the time of writing a realigned operand that is regained where it stays in L2."""


class Traffic(NamedTuple):
    """What kernels read, and in which order."""

    across: Floats
    """Bytes that a tile takes, for each of K, of the operand that changes with the tile across the raster order."""
    along: Floats
    """The same of the operand that changes along it."""
    aligns: Floats
    """Bytes that A, B and C of the problem, the rows, are aligned to where the kernel loads them."""
    dram_share: Floats
    """Part of DRAM's rate that its loads reach."""
    swizzle: Floats
    raster_m: Bools

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], swap_ab: bool, dram_shares: Sequence[float]) -> Traffic:
        """Of kernels, for problems as they are or transposed, which reach so much of DRAM's rate."""
        aligns = [[c.a.align, c.b.align, c.c.align if c.c else 0] for c in configs]
        order = [1, 0, 2] if swap_ab else [0, 1, 2]
        raster_m = np.array([c.scheduler.raster == "m" for c in configs])
        a = column(configs, lambda c: c.tile.m * c.a.type.bits / 8)
        b = column(configs, lambda c: c.tile.n * c.b.type.bits / 8)
        return cls(
            across=np.where(raster_m, b, a),
            along=np.where(raster_m, a, b),
            aligns=np.array(aligns, np.float64).T[order],
            dram_share=np.array(dram_shares, np.float64),
            swizzle=column(configs, lambda c: c.scheduler.swizzle_size),
            raster_m=raster_m,
        )


def dram_bytes(k: Traffic, work: Work, problem: GemmProblem, gpu: Gpu) -> Floats | float:
    """Bytes that cross DRAM: every operand once, and A and B anew in each wave if they outgrow L2.

    The tiles of a wave are as many as the swizzle size across the raster order, and go along it.
    """
    inputs = problem.k * (problem.m * _bytes(problem.a_dtype) + problem.n * _bytes(problem.b_dtype)) * problem.batch
    outputs = problem.m * problem.n * output_bytes(problem) * problem.batch
    if inputs / problem.batch <= _L2_SHARE * gpu.l2_bytes:
        return inputs + outputs
    across, along = np.where(k.raster_m, work.tiles[::-1], work.tiles)
    width = np.minimum(k.swizzle, across)
    length = np.minimum(np.ceil(work.active / width), along)
    width = np.minimum(np.maximum(width, work.active / length), across)
    wave = width * k.across + length * k.along
    rounds = across * along / (width * length)
    return np.asarray(outputs + np.maximum(inputs, rounds * wave * (problem.k * problem.batch)))


def output_bytes(problem: GemmProblem) -> float:
    """Bytes of an element of C, if there is one, and of D together."""
    return (_bytes(problem.c_dtype) if problem.c_dtype else 0) + _bytes(problem.d_dtype)


def _bytes(dtype: DTypeName) -> float:
    return DTYPES[dtype].bits / 8


def realigned(k: Traffic, problem: GemmProblem) -> Bools:
    """Whether A, B and C, the rows, are copied into aligned memory before each kernel, if it serves the problem."""
    return np.array(((problem.a_align,), (problem.b_align,), (problem.c_align,))) < k.aligns


def realignment_us(k: Traffic, problem: GemmProblem, gpu: Gpu) -> Floats | float:
    """Microseconds in which operands that are less aligned than a kernel reads them are realigned first: of what is
    read and written, as the launch of the kernel hides behind it."""
    if min(problem.a_align, problem.b_align, problem.c_align) >= TMA_ALIGN:  # no kernel wants more
        return 0.0
    own = [(_realigned_bytes(problem, name),) for name in "abc"]
    size = np.where(realigned(k, problem), own, 0).sum(axis=0) * problem.batch
    kept = np.where(size <= _L2_SHARE * gpu.l2_bytes, _REALIGNED_KEPT, 0)
    return np.asarray((2 - kept) * size / gpu.dram_gbps / 1000)


def _realigned_bytes(problem: GemmProblem, operand: str) -> int:
    """Bytes of a copy of a matrix of an operand, in sectors; 0 where there is no C."""
    if (dtype := getattr(problem, f"{operand}_dtype")) is None:
        return 0
    columns, rows = problem.extents_of(operand)
    return rows * align_up(columns * DTYPES[dtype].bits // 8, L2_SECTOR)
