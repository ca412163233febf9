"""What the model says of kernels: times of the busiest SM, DRAM and power, of which the slowest sets the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Floats, Integers
    from gemmill.runtime.select.cost.sm import SmTime

BOUNDS = ("tensor cores", "L2 loads", "load latency", "epilogue", "DRAM", "power")
"""What can set the pace of a kernel, in the order of :attr:`Estimate.bound`: the first four on an SM."""
LOAD_LATENCY, EPILOGUE = 2, 3
"""Indices into :data:`BOUNDS`."""

_WHOLE_SHARPNESS = 11.5
"""Exponent of the norm that joins the SMs, DRAM and power; without end it would be their maximum."""


class Estimate(NamedTuple):
    """What the model says of each kernel."""

    us: Floats
    """Predicted time in microseconds."""
    tiles: Floats
    """Output tiles, each as often as K is split among CTAs that sum it on their own."""
    waves: Floats
    """Tiles that the busiest SM computes, one after the other."""
    utilisation: Floats
    """Part of the SMs' rounds that compute something inside the problem."""
    bound: Integers
    """Index into :data:`BOUNDS`."""


def soft_maximum(times: Floats, sharpness: float) -> Floats:
    """The maximum of the rows, but that what competes delays each other where it is about as slow: their norm."""
    slowest = np.maximum.reduce(times)
    shares = times / slowest
    shares **= sharpness
    return np.asarray(slowest * np.add.reduce(shares) ** (1 / sharpness))


def power_ns(problem: GemmProblem, gpu: Gpu) -> float:
    """The least time under the power cap, whatever the kernel."""
    widest = max(DTYPES[problem.a_dtype].bits, DTYPES[problem.b_dtype].bits) / 8
    return problem.expected_flops * widest / 2 / gpu.power_tflops / 1000


def roofline(sm: SmTime, dram_ns: Floats, power_ns: float) -> tuple[Floats, Integers]:
    """Time by the slowest of the busiest SM, DRAM and power, and which it is, as an index into :data:`BOUNDS`."""
    shared = np.empty((3, sm.ns.size))
    shared[0], shared[1], shared[2] = sm.ns, dram_ns, power_ns
    slowest = shared.argmax(axis=0)
    bound = np.where(slowest == 0, sm.bound, slowest + EPILOGUE)
    return soft_maximum(shared, _WHOLE_SHARPNESS), bound
