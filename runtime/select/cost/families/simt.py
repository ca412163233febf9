"""Cost of kernels that multiply by FMAs. The estimates are rough: these kernels run what no other kernel supports, and
compete with mma.sync kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column, soft_maximum
from gemmill.runtime.select.cost.families.family import DIRECT_DRAM, LATENCY_NS, Family

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats

_MULTIPLY_ADDS: Mapping[DTypeName, float] = {"f32": 104, "s32": 60, "f64": 45}
"""Multiply-adds per clock of an SM, by accumulator."""
_SMALL_TILE, _LARGE_TILE = 0.8, 1.09
"""Relative rates of tiles of 64 x 64 and of 128 x 256: a wider tile needs less shared memory bandwidth per
multiply-add."""


def _columns(configs: Sequence[GemmConfig], swap_ab: Bools, common: Columns, gpu: Gpu) -> Columns:
    return {"multiply_ns": column(configs, _multiply_cycles) / gpu.clock_ghz}


def _busiest_ns(columns: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Several CTAs on an SM hide the latency of loads."""
    work["paces"] = columns["multiply_ns"], work["load_ns"]
    ns: Floats = LATENCY_NS + work["waves"] * (work["steps"] * soft_maximum(work["paces"]) + work["store_ns"])
    return ns


def _multiply_cycles(config: GemmConfig) -> float:
    """Return the clocks in which an SM multiplies a step."""
    tile = config.tile
    elements = tile.m * tile.n
    share = _SMALL_TILE if elements <= 64 * 64 else _LARGE_TILE if elements >= 128 * 256 else 1
    return elements * tile.k / (_MULTIPLY_ADDS[config.accumulator] * share)


FAMILY = Family(_columns, _busiest_ns, sums_exactly=True, multiplies_by="multiply-adds", dram_share=DIRECT_DRAM)
