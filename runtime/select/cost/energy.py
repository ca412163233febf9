"""The energy term of the model: how the power limit slows kernels under sustained load.

The GPU lowers its clock until its power is within the limit, so a kernel that uses less energy per multiply-add runs at
a higher clock. Kernels differ in the elements that they move per multiply-add. The elements that TMA writes to shared
memory depend on the tile, and those that leave L2 depend on the cluster, which shares them by multicast. Kernels also
differ in how much of their tiles lies outside the problem, which costs energy as well. The time is a weighted geometric
mean of the burst time and of the least time under the limit for all multiply-adds. It grows with the elements moved and
with the stages; stream-K saves less than in a burst:

    us = scale * burst_us ** burst * (padding * power_us) ** (1 - burst) * (written * fetched) ** moved
         * stages_of_kernel ** stages * exp(stream if it is stream-K)

The burst time is the geometric mean of the model's time and of its analytic part, since the limit takes back part of
what the network corrects in a burst. The term counts elements, not bytes, because multiply-adds of wider elements use
more energy too; the coefficients are therefore similar for all types. `gemmill train` fits them to records with the
regime ``sustained``; docs/performance/sustained.md shows the accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmill.library.dtypes import DTYPES, default_output
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.symmetric import triangle
from gemmill.runtime.select.cost.table import STATIC

if TYPE_CHECKING:
    from gemmill.library.arch import Gpu
    from gemmill.runtime.select.cost.arrays import Bools, Floats, Integers
    from gemmill.runtime.select.cost.table import FeatureTable

Energy = Mapping[str, float]
"""Coefficients of one type.

- ``burst``: the weight of the burst time, out of 1.
- ``moved``: the exponent of the elements per multiply-add that are written to shared memory and that leave L2.
- ``stages``: the exponent of the stages.
- ``stream``: the term that stream-K adds to the logarithm.
- ``scale``: the remaining factor.
- ``watts``: the power of the GPU during the run, which is about the limit for every kernel.
"""
WEIGHTS = "burst", "moved", "stages", "stream"
"""Coefficients that distinguish kernels."""
COEFFICIENTS = *WEIGHTS, "scale", "watts"
"""All coefficients."""
HELD = 0.6
"""Least ratio of the time under the power limit to the model's burst time for which the limit applies to a long run."""
NEAR = 1.2
"""Largest predicted burst time of a candidate relative to the fastest; the measured kernels were within it."""
LEAST_EXTENT = 1024
"""Least M and N of the measurements that the term was fitted to. At 512 rows it picked kernels that were slower under
sustained load too."""
AS_FAST, LESS_COVERED = 1.01, 0.5
"""Where no coefficients apply: the largest time relative to the fastest kernel's at which a kernel is used whose tiles
cover at most this fraction of the elements. Multiply-adds outside D need energy too: on an H200, one row of 28672x4096
takes 53.7 us with tiles of 8, 16 and 64 rows, and 28.9, 30.1 and 38.9 mJ."""
THRIFTY = "about as fast as the fastest, with fewer multiply-adds outside D: "
"""Start of the reason for such a kernel."""
_TYPE_OF = {name: dtype.compatible or dtype.name for name, dtype in DTYPES.items()}
"""The type whose coefficients apply to each type."""


def energy_of(problem: GemmProblem, energies: Mapping[str, Energy]) -> Energy | None:
    """Return the coefficients for a problem; None where none apply.

    They apply to one matrix of at least :data:`LEAST_EXTENT` rows and columns, or to groups of that size on average.
    A and B must have the same or compatible types, and D the default type.
    """
    a, b = _TYPE_OF.get(problem.a_dtype), _TYPE_OF.get(problem.b_dtype)
    if a is None or a != b or a not in energies or problem.d_dtype != default_output(a):
        return None
    if not ((problem.batching == "strided" and problem.batch == 1) or problem.batching in ("grouped", "masked")):
        return None
    typical = problem.typical()
    return energies[a] if min(typical.m, typical.n) >= LEAST_EXTENT else None


def sustained_us(
    energy: Energy,
    burst_us: Floats,
    analytic_us: Floats,
    table: FeatureTable,
    problem: GemmProblem,
    gpu: Gpu,
    members: Integers | None = None,
) -> Floats:
    """Return the microseconds of kernels under sustained load.

    Args:
        energy: the coefficients.
        burst_us: microseconds in a burst.
        analytic_us: the same by the analytic model alone.
        table: the kernels.
        problem: a strided batch.
        gpu: the GPU.
        members: indices of the kernels in ``table`` that the times are for; None: all.
    """

    def of_members(figures: Any) -> Any:
        return figures if members is None else figures.take(members, axis=-1)

    tile, symmetric = (of_members(table.columns[name]) for name in ("tile", "symmetric"))
    held_us = padding(tile, of_members(table.side), symmetric, problem) * power_us(problem, gpu)
    sustained = energy["scale"] * (burst_us * analytic_us) ** (energy["burst"] / 2) * held_us ** (1 - energy["burst"])
    sustained = (
        sustained
        * of_members(table.columns["moved"]) ** energy["moved"]
        * of_members(table.columns["stages"]) ** energy["stages"]
    )
    return np.asarray(sustained * np.exp(energy["stream"] * of_members(is_stream(table))))


def is_stream(table: FeatureTable) -> Floats:
    """Return 1 for stream-K kernels and 0 for others."""
    return np.asarray(table.inputs[:, STATIC.index("stream-K")])


def padding(tile: Floats, side: Integers, symmetric: Bools, problem: GemmProblem) -> Floats:
    """Return the elements of D that tiles cover, relative to those that must be multiplied; ``side`` maps the extents
    of the problem to each kernel's."""
    extents = np.array((problem.m, problem.n), np.float64).take(side)
    covered = np.ceil(extents / tile) * tile
    elements = covered[0] * covered[1]
    if problem.symmetry != "general":
        elements = 2 * np.where(symmetric, triangle(tile, problem.m) * tile[0] * tile[1], elements)
    return np.asarray(elements / (problem.m * problem.n))


def thriftiest(us: Floats, covered: Floats) -> int:
    """Return the index of the kernel that saves energy, among kernels within :data:`AS_FAST` of the fastest.

    It is the fastest of those whose tiles cover far fewer elements (:func:`padding`); without one, the fastest of all.
    """
    fastest = us.argmin()
    saving = (covered <= LESS_COVERED * covered[fastest]).nonzero()[0]
    return int(saving[us[saving].argmin()] if saving.size else fastest)


def power_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Return the least microseconds under the power limit, for any kernel."""
    widest = max(DTYPES[problem.a_dtype].bits, DTYPES[problem.b_dtype].bits) / 8
    return problem.expected_flops * widest / 2 / gpu.power_tflops / 1e6


def least_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Return the microseconds in which DRAM can read A and B once and write D: a lower bound for any kernel."""
    a, b, d = (DTYPES[dtype].bits for dtype in (problem.a_dtype, problem.b_dtype, problem.d_dtype))
    bits = problem.k * (problem.m * a + problem.n * b) + problem.m * problem.n * d
    return problem.batch * bits / 8 / gpu.dram_gbps / 1000
