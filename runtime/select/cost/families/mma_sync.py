"""Kernels that multiply by mma.sync what threads copy into shared memory.

Rough: they are for what TMA cannot move, or no others run, and compete with those of simt and with
realigned operands. Fitted, but for registers, scattered stores and DRAM, to 2,555 measurements on an H200, of 124
kernels at 122 problems of five types (docs/performance, "Few rows times such weights").
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

# The library's module of the family comes with all rules: a program without such kernels starts faster, so it is
# imported where it is asked.

_MULTIPLY_ADDS = 955.0
"""Multiply-adds that an SM finishes in a clock, on 16 bits."""
_RATES: Mapping[DTypeName, float] = {
    **dict.fromkeys(INT8, 2.1),
    **dict.fromkeys(FP8, 0.8),  # multiplied as f16
    "tf32": 0.495,
    "f64": 0.144,
}
"""Other types' part of it."""
_COPY_CYCLES: Mapping[int, float] = {16: 0.173, 8: 0.224, 4: 0.176, 2: 0.243, 1: 0.243}
"""Clocks for a copy of so many bytes into a stage; below 4 through registers."""
_SHIFTED_CYCLES = 1.04
"""The same for 16 bytes of rows that begin anywhere, and for putting their words together."""
_COPY_A = 0.78
"""What copies of A count of that: other CTAs have brought it to L2."""
_COPY_OUTSIDE = 0.4
"""What rows of a tile that lie outside of the problem take of that all the same."""
_STEP_CYCLES = 100.0
"""Clocks in which a CTA that has an SM alone turns to the next stage; others hide them."""
_RESERVED_BYTES = 1024
"""Shared memory that each CTA takes for the system, and an SM has for as many CTAs of one."""
_REGISTERS = 100
"""Registers of a thread beside its sums."""
_LOAD_NS = 880.0
"""What the loads of a step take."""
_SCATTERED = 2.0
"""Times as long that a D of any strides takes to store, element by element."""


def _columns(configs: Sequence[GemmConfig], swap_ab: Bools, common: Columns, gpu: Gpu) -> Columns:
    copies = np.array([_copy_cycles(config) for config in configs], np.float64)
    return {
        "multiply_cycles": column(configs, _multiply_cycles),
        "copy_cycles_a": copies[:, 0],
        "copy_cycles_b": copies[:, 1],
        "latency_ns": _LOAD_NS / (common["stages"] - 1),
    }


def _busiest_ns(own: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    copied_a = _COPY_OUTSIDE + (1 - _COPY_OUTSIDE) * work["inside_a"]
    copied_b = _COPY_OUTSIDE + (1 - _COPY_OUTSIDE) * work["inside_b"]
    copy_cycles = own["copy_cycles_a"] * copied_a + own["copy_cycles_b"] * copied_b
    turning = np.where(work["sharing"] <= 1, _STEP_CYCLES, 0)
    step_cycles = turning + work["sharing"] * np.hypot(own["multiply_cycles"], copy_cycles)
    work["paces"] = step_cycles / gpu.clock_ghz, work["load_ns"], own["latency_ns"]
    ns: Floats = LATENCY_NS + work["waves"] * (work["steps"] * soft_maximum(work["paces"]) + work["store_ns"])
    return ns


def _multiply_cycles(config: GemmConfig) -> float:
    tile = config.tile
    return tile.m * tile.n * tile.k / (_MULTIPLY_ADDS * _RATES.get(config.a.dtype, 1.0))


def _copy_cycles(config: GemmConfig) -> tuple[float, float]:
    """Clocks in which the threads of a kernel copy the stages of A and of B."""
    from gemmill.library.families.mma import SHIFTED_BYTES, MmaPlan

    plan = MmaPlan(config)

    def cycles(operand: InputName, x: InputOperand, stage: int) -> float:
        if plan.is_shifted(operand):
            return stage / SHIFTED_BYTES * _SHIFTED_CYCLES
        return stage / x.align * _COPY_CYCLES[x.align]

    a, b = plan.stage_bytes
    return _COPY_A * cycles("a", config.a, a), cycles("b", config.b, b)


def _ctas_per_sm(config: GemmConfig) -> int:
    """As many as shared memory and registers have room for."""
    from gemmill.library.families.mma import MmaPlan

    plan = MmaPlan(config)
    registers = plan.threads * (plan.accumulator_registers + _REGISTERS)
    by_memory = (config.target.shared_bytes + _RESERVED_BYTES) // (plan.shared_bytes + _RESERVED_BYTES)
    return max(1, min(by_memory, SM_REGISTERS // registers))


def _storing(config: GemmConfig) -> float:
    return _SCATTERED if config.d.major == "any" else 1.0


FAMILY = Family(_columns, _busiest_ns, ctas_per_sm=_ctas_per_sm, storing=_storing, dram_share=DIRECT_DRAM)
