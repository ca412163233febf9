"""The roofline of a GPU by its figures in library/arch.py, whose peak rates no measurement gives."""

from __future__ import annotations

from typing import NamedTuple

from gemmill.library.arch import Gpu
from gemmill.library.dtypes import DTYPES
from gemmill.library.families.wgmma.wgmma_plan import INSTRUCTION_K_BYTES, SUBTILE_M
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.analysis.figures import moved_bytes
from gemmill.profiler.measure.peak_rates import Roof, peak_rate_dtype
from gemmill.runtime.select import gpus
from gemmill.runtime.select.cost.families.wgmma import MMA_COLUMNS_PER_CYCLE

DRAM = "DRAM"
"""Name of the roof of problems that memory limits."""
_WIDE_FLOPS = 256
"""Floating-point operations of an SM per clock for f32, by FMAs, and for f64, by tensor cores (H100 white paper)."""


class PeakRate(NamedTuple):
    """The rate at which all SMs of a GPU multiply operands of a type, at the clock in library/arch.py."""

    dtype: str
    """The type of the operands of the units."""
    units: str
    """The units that multiply."""
    tflops: float
    """TFLOP/s; of f32 that is split into components, those of the f32 product."""


def peak_rate(problem: GemmProblem, gpu: Gpu) -> PeakRate:
    """The peak rate for the types of a problem."""
    split = DTYPES[problem.a_dtype]
    wider = max(problem.a_dtype, problem.b_dtype, key=lambda name: DTYPES[name].bits)
    dtype = peak_rate_dtype(problem.of_components)
    flops: float = _WIDE_FLOPS
    if dtype is not None:
        flops = gpu.mma_rate * 2 * SUBTILE_M * MMA_COLUMNS_PER_CYCLE * INSTRUCTION_K_BYTES * 8 / DTYPES[dtype].bits
    return PeakRate(
        wider if dtype is None or split.component else dtype,
        "FMAs" if dtype is None and wider != "f64" else "tensor cores",
        gpu.sms * flops * gpu.clock_ghz / 1000 / len(split.terms),
    )


def roof(problem: GemmProblem, gpu: Gpu) -> Roof:
    """What limits a problem: the units at their peak rate, or DRAM if each operand is moved once.

    Masked groups have the rows that are expected to be in use.
    """
    rate = peak_rate(problem, gpu)
    memory = Roof(DRAM, moved_bytes(problem.typical()) / gpu.dram_gbps / 1000)
    return max(Roof(rate.units, problem.expected_flops / rate.tflops / 1e6), memory, key=lambda each: each.us)


class Reached(NamedTuple):
    """How close a measurement comes to the roofline."""

    roof: Roof
    fraction: float | None
    """Time at the limiting rate relative to the measured time; None if it failed."""


def reached(measurement: Measurement) -> Reached:
    """What limits a measured problem on its GPU, and the fraction that the kernel or baseline reaches."""
    limit = roof(measurement.as_full, gpus.figures(measurement.gpu))
    return Reached(limit, None if measurement.us is None else limit.us / measurement.us)
