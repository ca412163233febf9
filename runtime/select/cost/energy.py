"""The model's energy term: how the power limit slows kernels in a program that runs for seconds.

The GPU's clock falls until what is drawn is within the limit, so a kernel that spends less energy a product runs at a
higher clock. Kernels differ in the elements that they move for a product: those that TMA writes to shared memory, by
the tile, and those that leave L2, by the cluster, which multicast shares. And they differ in what of their tiles lies
beyond the problem: such products cost energy as well. The time is a weighted geometric mean of the model's for a burst
and of the least under the limit for all that is multiplied, and grows with what is moved, with stages and by stream-K,
which saves less there than in a burst:

    us = scale * burst_us ** burst * (padding * power_us) ** (1 - burst) * (written * fetched) ** moved
         * stages_of_kernel ** stages * exp(stream if it is stream-K)

The model's is the mean of its time and of its analytic part's, since what the network corrects in a burst is in part
what the limit takes back. Elements, not bytes: a product of wider ones takes more energy as well, so that weights are
alike in all types. Fitted to records of the regime ``sustained`` by `gemmill train`; docs/performance/sustained.md has
how well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmill.library.dtypes import DTYPES, default_output
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.table import STATIC

if TYPE_CHECKING:
    from gemmill.library.arch import Gpu
    from gemmill.runtime.select.cost.arrays import Floats, Integers
    from gemmill.runtime.select.cost.table import FeatureTable

Energy = Mapping[str, float]
"""Coefficients of one type: ``burst``, the weight of the burst's time, of 1; ``moved``, the power of the elements a
product that are written to shared memory and of those that leave L2; ``stages``, that of a kernel's stages; ``stream``,
what stream-K adds to the logarithm; ``scale``, what is left; ``watts``, what the GPU draws meanwhile, whatever the
kernel: the limit, or nearly."""
WEIGHTS = "burst", "moved", "stages", "stream"
"""Names of those that tell kernels apart."""
COEFFICIENTS = *WEIGHTS, "scale", "watts"
"""The names of all."""
HELD = 0.6
"""The power limit holds a long run from this share on of the time that the model has of a burst."""
NEAR = 1.2
"""How far behind the fastest in a burst a kernel may be by the model: what was measured was within it."""
LEAST_EXTENT = 1024
"""Least M and N of what the term was fitted to. Of layers at 512 rows it named kernels that are slower in long runs too
than those for bursts."""
_TYPE_OF = {name: dtype.compatible or dtype.name for name, dtype in DTYPES.items()}
"""The type whose coefficients a type has."""


def energy_of(problem: GemmProblem, energies: Mapping[str, Energy]) -> Energy | None:
    """The coefficients for a problem; None where none hold for it: they do for a matrix each of :data:`LEAST_EXTENT`
    rows and columns or more, or groups of as many on average, A and B of one type, or of compatible types, D of that
    which it has unless another is requested."""
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
    """Microseconds of kernels in a long run.

    Args:
        energy: the coefficients.
        burst_us: microseconds of a burst.
        analytic_us: the same by the analytic model alone.
        table: the kernels; or some of them, by their indices ``members``.
        problem: a strided batch.
        gpu: where.
        members: as above; None: all.
    """

    def of_members(figures: Any) -> Any:
        return figures if members is None else figures.take(members, axis=-1)

    held_us = padding(of_members(table.columns["tile"]), of_members(table.side), problem) * power_us(problem, gpu)
    found = energy["scale"] * (burst_us * analytic_us) ** (energy["burst"] / 2) * held_us ** (1 - energy["burst"])
    found = (
        found
        * of_members(table.columns["moved"]) ** energy["moved"]
        * of_members(table.columns["stages"]) ** energy["stages"]
    )
    return np.asarray(found * np.exp(energy["stream"] * of_members(is_stream(table))))


def is_stream(table: FeatureTable) -> Floats:
    """1 of kernels of stream-K, 0 of others."""
    return np.asarray(table.inputs[:, STATIC.index("stream-K")])


def padding(tile: Floats, side: Integers, problem: GemmProblem) -> Floats:
    """Elements of D that tiles cover, over those that a problem has, whose extents kernels have by ``side``."""
    extents = np.array((problem.m, problem.n), np.float64).take(side)
    covered = np.ceil(extents / tile) * tile
    return np.asarray(covered[0] * covered[1] / (problem.m * problem.n))


def power_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Least microseconds under the power limit, whatever the kernel."""
    widest = max(DTYPES[problem.a_dtype].bits, DTYPES[problem.b_dtype].bits) / 8
    return problem.expected_flops * widest / 2 / gpu.power_tflops / 1e6


def least_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Microseconds that DRAM takes to bring A and B once and take D: no kernel needs fewer."""
    a, b, d = (DTYPES[dtype].bits for dtype in (problem.a_dtype, problem.b_dtype, problem.d_dtype))
    bits = problem.k * (problem.m * a + problem.n * b) + problem.m * problem.n * d
    return problem.batch * bits / 8 / gpu.dram_gbps / 1000
