"""Cost of kernels that multiply by FMAs. The estimates are rough: these kernels run what no other kernel supports, and
compete with mma.sync kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.library.legality.quantities import SM_REGISTERS
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column, soft_maximum
from gemmill.runtime.select.cost.families.family import DIRECT_DRAM, LATENCY_NS, Family

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats

_MULTIPLY_ADDS: Mapping[DTypeName, float] = {"f32": 124, "s32": 60, "f64": 45}
"""Multiply-adds per clock of an SM, by accumulator."""
_SMALL_TILE = 0.79
"""Relative rate of tiles below 128 x 128: their threads load more values per multiply-add."""
_LOAD_NS = 600.0
"""Time of the loads of a step, of which a CTA has one in flight."""
_REGISTERS = 72
"""Registers of a thread besides its accumulators."""
_SCATTERED = 2.0
"""Relative time to store a D of any strides, element by element."""


def _columns(configs: Sequence[GemmConfig], swap_ab: Bools, common: Columns, gpu: Gpu) -> Columns:
    return {"multiply_ns": column(configs, _multiply_cycles) / gpu.clock_ghz}


def _busiest_ns(columns: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Several CTAs on an SM hide the latency of loads."""
    work["paces"] = work["sharing"] * columns["multiply_ns"], work["load_ns"], _LOAD_NS
    ns: Floats = LATENCY_NS + work["waves"] * (work["steps"] * soft_maximum(work["paces"]) + work["store_ns"])
    return ns


def _multiply_cycles(config: GemmConfig) -> float:
    """Return the clocks in which an SM multiplies a step."""
    tile = config.tile
    share = _SMALL_TILE if tile.m * tile.n < 128 * 128 else 1
    return tile.m * tile.n * tile.k / (_MULTIPLY_ADDS[config.accumulator] * share)


def _ctas_per_sm(config: GemmConfig) -> int:
    """Return how many CTAs fit the registers of an SM."""
    from gemmill.library.families.simt import SimtPlan

    plan = SimtPlan(config)
    return max(1, SM_REGISTERS // (plan.threads * (plan.accumulator_registers + _REGISTERS)))


def _storing(config: GemmConfig) -> float:
    return _SCATTERED if config.d.major == "any" else 1.0


FAMILY = Family(
    _columns,
    _busiest_ns,
    ctas_per_sm=_ctas_per_sm,
    storing=_storing,
    sums_exactly=True,
    multiplies_by="multiply-adds",
    dram_share=DIRECT_DRAM,
)
