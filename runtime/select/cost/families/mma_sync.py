"""Cost of kernels that multiply by mma.sync from shared memory, which threads fill.

The estimates are rough: these kernels run what TMA cannot load, or what no other kernel supports. They compete with
simt kernels and with realigned operands. All constants except registers, scattered stores and DRAM are fitted to 2,555
measurements on an H200, of 124 kernels on 122 problems of five types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig, InputName, InputOperand
from gemmill.library.dtypes import FP8, INT8, DTypeName
from gemmill.library.legality.quantities import SM_REGISTERS
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column, soft_maximum
from gemmill.runtime.select.cost.families.family import DIRECT_DRAM, LATENCY_NS, Family

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats

# The library's module of the family imports all rules, so functions import it on demand: programs without such kernels
# start faster.

_MULTIPLY_ADDS = 955.0
"""Multiply-adds per clock of an SM, for 16-bit types."""
_RATES: Mapping[DTypeName, float] = {
    **dict.fromkeys(INT8, 2.1),
    **dict.fromkeys(FP8, 0.8),  # multiplied as f16
    "tf32": 0.495,
    "f64": 0.144,
}
"""Rate of other types relative to it."""
_COPY_CYCLES: Mapping[int, float] = {16: 0.173, 8: 0.224, 4: 0.176, 2: 0.243, 1: 0.243}
"""Clocks to copy this many bytes into a stage; below 4 bytes through registers."""
_SHIFTED_CYCLES = 1.04
"""The same for 16 bytes of rows that start anywhere, including the shifts that assemble their words."""
_COPY_A = 0.78
"""Relative cost of copies of A: other CTAs have brought it into L2."""
_COPY_OUTSIDE = 0.4
"""Relative cost of rows of a tile outside the problem."""
_STEP_CYCLES = 100.0
"""Clocks in which a CTA alone on an SM advances to the next stage; with several CTAs the others hide them."""
_RESERVED_BYTES = 1024
"""Shared memory that the system reserves for each CTA; an SM has one such reserve beyond its capacity."""
_REGISTERS = 100
"""Registers of a thread besides its accumulators."""
_LOAD_NS = 880.0
"""Time of the loads of a step."""
_SCATTERED = 2.0
"""Relative time to store a D of any strides, element by element."""


def _columns(configs: Sequence[GemmConfig], swap_ab: Bools, common: Columns, gpu: Gpu) -> Columns:
    copies = np.array([_copy_cycles(config) for config in configs], np.float64)
    return {
        "multiply_cycles": column(configs, _multiply_cycles) / gpu.mma_rate,
        "copy_cycles_a": copies[:, 0],
        "copy_cycles_b": copies[:, 1],
        "latency_ns": _LOAD_NS / (common["stages"] - 1),
    }


def _busiest_ns(columns: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    copied_a = _COPY_OUTSIDE + (1 - _COPY_OUTSIDE) * work["inside_a"]
    copied_b = _COPY_OUTSIDE + (1 - _COPY_OUTSIDE) * work["inside_b"]
    copy_cycles = columns["copy_cycles_a"] * copied_a + columns["copy_cycles_b"] * copied_b
    turning = np.where(work["sharing"] <= 1, _STEP_CYCLES, 0)
    step_cycles = turning + work["sharing"] * np.hypot(columns["multiply_cycles"], copy_cycles)
    work["paces"] = step_cycles / gpu.clock_ghz, work["load_ns"], columns["latency_ns"]
    ns: Floats = LATENCY_NS + work["waves"] * (work["steps"] * soft_maximum(work["paces"]) + work["store_ns"])
    return ns


def _multiply_cycles(config: GemmConfig) -> float:
    tile = config.tile
    return tile.m * tile.n * tile.k / (_MULTIPLY_ADDS * _RATES.get(config.a.dtype, 1.0))


def _copy_cycles(config: GemmConfig) -> tuple[float, float]:
    """Return the clocks in which the threads of a kernel copy the stages of A and of B."""
    from gemmill.library.families.mma import SHIFTED_BYTES, MmaPlan

    plan = MmaPlan(config)

    def cycles(operand: InputName, x: InputOperand, stage: int) -> float:
        if plan.is_shifted(operand):
            return stage / SHIFTED_BYTES * _SHIFTED_CYCLES
        return stage / x.align * _COPY_CYCLES[x.align]

    a, b = plan.stage_bytes
    return _COPY_A * cycles("a", config.a, a), cycles("b", config.b, b)


def _ctas_per_sm(config: GemmConfig) -> int:
    """Return how many CTAs fit the shared memory and registers of an SM."""
    from gemmill.library.families.mma import MmaPlan

    plan = MmaPlan(config)
    registers = plan.threads * (plan.accumulator_registers + _REGISTERS)
    by_memory = (config.target.shared_bytes + _RESERVED_BYTES) // (plan.shared_bytes + _RESERVED_BYTES)
    return max(1, min(by_memory, SM_REGISTERS // registers))


def _storing(config: GemmConfig) -> float:
    return _SCATTERED if config.d.major == "any" else 1.0


FAMILY = Family(_columns, _busiest_ns, ctas_per_sm=_ctas_per_sm, storing=_storing, dram_share=DIRECT_DRAM)
