"""Time in a program that runs for seconds, which the power limit holds: a law beside the model of a lone launch.

The GPU's clock falls until what is drawn is within the limit, so a kernel that spends less energy a product runs at a
higher clock. Kernels differ in the elements that they move for a product: those that TMA writes to shared memory, by
the tile, and those that leave L2, by the cluster, which multicast shares. And they differ in what of their tiles lies
beyond the problem: such products cost energy as well. The time is the geometric mean of the model's and of the least
under the limit for all that is multiplied, and grows with what is moved:

    us = scale * model_us ** burst * (padding * power_us) ** (1 - burst) * exp(written * x + fetched * y)

Elements, not bytes: a product of wider ones takes more energy as well, so that one weight serves all types. Fitted to
records of the regime ``sustained`` by `gemmill train`; docs/performance/sustained.md has how well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.dtypes import DTYPES, default_output
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column
from gemmill.runtime.select.cost.roofline import power_ns
from gemmill.runtime.select.models import content_of, path_of, sound

if TYPE_CHECKING:
    from gemmill.library.arch import Gpu
    from gemmill.library.config.model import GemmConfig
    from gemmill.runtime.select.cost.arrays import Floats, Integers

VERSION = 3
"""Of the files."""
_LAW_OF = {name: dtype.alike or dtype.name for name, dtype in DTYPES.items()}
"""The type whose law a type has."""
HELD = 0.6
"""A long run is held by the power limit from this share on of the time that the model says of a lone launch."""

LEAST_EXTENT = 1024
"""Least M and N of what laws were fitted to. Of layers at 512 rows they named kernels that are slower in long runs too
than those for lone launches (docs/performance/programs.md, "Layers alone")."""


class Moved(NamedTuple):
    """What kernels move for a product."""

    written: Floats
    """Elements to shared memory."""
    fetched: Floats
    """Elements out of L2."""
    rows: Floats
    """Of a tile, along the problem's M."""
    columns: Floats
    """Along its N."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], swap_ab: bool | Sequence[bool]) -> Moved:
        """By kernels, for problems as they are or transposed."""
        m, n = column(configs, lambda c: c.tile.m), column(configs, lambda c: c.tile.n)
        return cls(
            (m + n) / (m * n),
            column(configs, lambda c: c.tile.m / c.cluster.n + c.tile.n / c.cluster.m) / (m * n),
            np.where(swap_ab, n, m),
            np.where(swap_ab, m, n),
        )

    def padding(self, problem: GemmProblem) -> Floats:
        """Elements of D that the tiles on a problem cover, over those that it has."""
        m, n = np.ceil(problem.m / self.rows), np.ceil(problem.n / self.columns)
        return np.asarray(m * self.rows * n * self.columns / (problem.m * problem.n))

    def take(self, members: Integers) -> Moved:
        """Of some."""
        return Moved(*[x.take(members) for x in self])


class Law(NamedTuple):
    """The coefficients, for operands of one type."""

    burst: float
    """Weight of the model's time, of 1."""
    written: float
    """By how much the logarithm of time grows for an element that is written to shared memory for a product."""
    fetched: float
    """The same for an element out of L2."""
    scale: float
    """What is left."""
    watts: float
    """What the GPU draws meanwhile, whatever the kernel: the limit, or nearly."""

    def us(self, model_us: Floats, power_us: float, moved: Moved, problem: GemmProblem) -> Floats:
        """Microseconds in a long run.

        Args:
            model_us: of a lone launch.
            power_us: least time under the power limit, whatever the kernel.
            moved: what the kernels move.
            problem: what they solve.
        """
        held = moved.padding(problem) * power_us
        more = self.written * moved.written + self.fetched * moved.fetched
        return np.asarray(self.scale * model_us**self.burst * held ** (1 - self.burst) * np.exp(more))


@cache
def laws(gpu: str, folder: Path | None = None) -> Mapping[str, Law]:
    """The laws of a GPU by the type of A and B, by the name of its row in library/arch.py, in a folder of models, by
    default of those that ship; none where nobody measured it under sustained load.

    Raises:
        RecordError: the file is damaged or of another version.
    """
    if (content := content_of(gpu, folder, "sustained", VERSION)) is None:
        return {}
    with sound(path_of(gpu, "sustained", folder)):
        return {
            dtype: Law(**{name: float(x) for name, x in own["law"].items()}) for dtype, own in content["types"].items()
        }


def law_of(problem: GemmProblem, gpu: Gpu) -> Law | None:
    """The law for a problem; None where none holds for such: for a matrix each of :data:`LEAST_EXTENT` rows and
    columns or more, or groups or slots of as many on average, A and B of one type, or of types alike, D of that which
    it has unless another is asked for."""
    a, b = _LAW_OF.get(problem.a_dtype), _LAW_OF.get(problem.b_dtype)
    if a is None or a != b or problem.d_dtype != default_output(a):
        return None
    alone = problem.batching == "strided" and problem.batch == 1
    if not (alone or problem.batching in ("grouped", "masked")):
        return None
    if min((own := problem.typical()).m, own.n) < LEAST_EXTENT:
        return None
    return laws(gpu.name, gpu.model).get(a)


def power_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Least microseconds under the power limit, whatever the kernel."""
    return power_ns(problem, gpu) / 1000


def least_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Microseconds that DRAM takes to bring A and B once and take D: no kernel needs fewer."""
    sides = ((problem.m, problem.k, problem.a_dtype), (problem.n, problem.k, problem.b_dtype))
    bits = sum(x * y * DTYPES[dtype].bits for x, y, dtype in (*sides, (problem.m, problem.n, problem.d_dtype)))
    return problem.batch * bits / 8 / gpu.dram_gbps / 1000
