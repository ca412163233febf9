"""Kernels that multiply by FMAs. Rough: they are asked where no others serve, and compete with those of mma.sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column
from gemmill.runtime.select.cost.families.family import DIRECT_DRAM, Family
from gemmill.runtime.select.cost.roofline import EPILOGUE, soft_maximum
from gemmill.runtime.select.cost.sm import LATENCY_NS, STEP_SHARPNESS, SmTime, SmWork

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Floats

_MULTIPLY_ADDS: Mapping[DTypeName, float] = {"f32": 104, "s32": 60, "f64": 45}
"""Multiply-adds that an SM finishes in a clock, by accumulator."""
_SMALL_TILE, _LARGE_TILE = 0.8, 1.09
"""Times as many that tiles of 64 x 64 reach, and of 128 x 256: the wider, the less of shared memory's bandwidth a
multiply-add takes."""


class SimtFeatures(NamedTuple):
    """Figures of kernels of the family."""

    multiply_cycles: Floats
    """Clocks in which an SM multiplies a step."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], swap_ab: bool) -> SimtFeatures:
        """Of kernels, for problems as they are or transposed."""
        return cls(column(configs, _multiply_cycles))

    def cost(self, work: SmWork, problem: GemmProblem, gpu: Gpu) -> SmTime:
        """As :meth:`Features.cost`; several CTAs on an SM hide the latency of loads."""
        paces = np.array((self.multiply_cycles / gpu.clock_ghz, work.load_ns))
        sm_ns = LATENCY_NS + work.tiles_ns(soft_maximum(paces, STEP_SHARPNESS))
        bound = np.where(work.stores_set_pace(sm_ns), EPILOGUE, np.argmax(paces, axis=0))
        return SmTime(sm_ns, bound, paces[1] / paces[0])


def _multiply_cycles(config: GemmConfig) -> float:
    tile = config.tile
    elements = tile.m * tile.n
    share = _SMALL_TILE if elements <= 64 * 64 else _LARGE_TILE if elements >= 128 * 256 else 1
    return elements * tile.k / (_MULTIPLY_ADDS[config.accumulator] * share)


FAMILY = Family(SimtFeatures.of, sums_exactly=True, multiplies_by="multiply-adds", dram_share=DIRECT_DRAM)
