"""What crosses DRAM: the operands, again where they outgrow L2, and operands that are realigned before a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import L2_SECTOR, Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES
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
    """What kernels read and write of each element, and in which order."""

    inputs: Floats
    """Bytes of an element of A and of B, the rows."""
    widest: Floats
    """Bytes of an element of the wider of them."""
    outputs: Floats
    """Bytes of an element of C, if there is one, and of D together."""
    tile_inputs: Floats
    """Bytes that an output tile takes of A and of B, the rows, for each of K."""
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
        inputs = np.array([(c.a.type.bits / 8, c.b.type.bits / 8) for c in configs]).T
        return cls(
            inputs=inputs,
            widest=inputs.max(axis=0),
            outputs=column(configs, lambda c: (c.c.type.bytes if c.c else 0) + c.d.type.bytes),
            tile_inputs=inputs * np.array([(c.tile.m, c.tile.n) for c in configs]).T,
            aligns=np.array(aligns, np.float64).T[order],
            dram_share=np.array(dram_shares, np.float64),
            swizzle=column(configs, lambda c: c.scheduler.swizzle_size),
            raster_m=np.array([c.scheduler.raster == "m" for c in configs]),
        )


def dram_bytes(k: Traffic, work: Work, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Bytes that cross DRAM: every operand once, and A and B anew in each wave if they outgrow L2.

    The tiles of a wave are as many as the swizzle size across the raster order, and go along it.
    """
    a, b = work.extents * k.inputs
    inputs: Floats = (a + b) * (problem.k * problem.batch)
    outputs: Floats = k.outputs * (problem.m * problem.n * problem.batch)
    outgrown = inputs > problem.batch * _L2_SHARE * gpu.l2_bytes
    if not outgrown.any():
        return inputs + outputs
    across, along = np.where(k.raster_m, work.tiles[::-1], work.tiles)
    width = np.minimum(k.swizzle, across)
    length = np.minimum(np.ceil(work.active / width), along)
    width = np.minimum(np.maximum(width, work.active / length), across)
    a, b = np.where(k.raster_m, (length, width), (width, length)) * k.tile_inputs
    wave = (a + b) * problem.k
    rounds = across * along * problem.batch / (width * length)
    return outputs + np.where(outgrown, np.maximum(inputs, rounds * wave), inputs)


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
