"""Time in a program that runs for seconds, which the power limit holds: a law beside the model of a lone launch.

The GPU's clock falls until what is drawn is within the limit, so a kernel that spends less energy a product runs at a
higher clock. Kernels differ in the bytes that they move for a product: those that TMA writes to shared memory, by the
tile, and those that leave L2, by the cluster, which multicast shares. The time is the geometric mean of the model's and
of the least under the limit, and grows with these bytes; tiles of 192 rows take somewhat longer, nobody knows why:

    us = scale * model_us ** burst * power_us ** (1 - burst) * exp(written * bytes + fetched * bytes + third * is 192)

fitted to records of the regime ``sustained`` by `gemmill train`; docs/performance/sustained.md has how well.
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

VERSION = 2
"""Of the files."""
HELD = 0.6
"""A long run is held by the power limit from this share on of the time that the model says of a lone launch."""


class Moved(NamedTuple):
    """What kernels move for a product."""

    written: Floats
    """Bytes to shared memory."""
    fetched: Floats
    """Bytes out of L2."""
    third: Floats
    """1 where three warpgroups share a tile, of 192 rows."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig]) -> Moved:
        """By kernels."""
        element_bytes = column(configs, lambda c: c.a.type.bits / 8)
        tile = column(configs, lambda c: c.tile.m * c.tile.n)
        return cls(
            element_bytes * column(configs, lambda c: c.tile.m + c.tile.n) / tile,
            element_bytes * column(configs, lambda c: c.tile.m / c.cluster.n + c.tile.n / c.cluster.m) / tile,
            column(configs, lambda c: c.tile.m == 192),
        )

    def take(self, members: Integers) -> Moved:
        """Of some."""
        return Moved(*[x.take(members) for x in self])


class Law(NamedTuple):
    """The coefficients, for operands of one type."""

    burst: float
    """Weight of the model's time, of 1."""
    written: float
    """By how much the logarithm of time grows for a byte that is written to shared memory for a product."""
    fetched: float
    """The same for a byte out of L2."""
    third: float
    """The same for a tile of 192 rows."""
    scale: float
    """What is left."""
    watts: float
    """What the GPU draws meanwhile, whatever the kernel: the limit, or nearly."""

    def us(self, model_us: Floats, power_us: float, moved: Moved) -> Floats:
        """Microseconds in a long run.

        Args:
            model_us: of a lone launch.
            power_us: least time under the power limit, whatever the kernel.
            moved: what the kernels move.
        """
        rate = model_us**self.burst * power_us ** (1 - self.burst)
        more = self.written * moved.written + self.fetched * moved.fetched + self.third * moved.third
        return np.asarray(self.scale * rate * np.exp(more))


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
    """The law for a problem; None where none was fitted to such: to a matrix each, A and B of one type, D of that which
    it has unless another is asked for."""
    usual = problem.a_dtype == problem.b_dtype and problem.d_dtype == default_output(problem.a_dtype)
    if not usual or problem.batch != 1 or problem.batching != "strided":
        return None
    return laws(gpu.name, gpu.model).get(problem.a_dtype)


def power_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Least microseconds under the power limit, whatever the kernel."""
    return power_ns(problem, gpu) / 1000


def least_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Microseconds that DRAM takes to bring A and B once and take D: no kernel needs fewer."""
    sides = ((problem.m, problem.k, problem.a_dtype), (problem.n, problem.k, problem.b_dtype))
    bits = sum(x * y * DTYPES[dtype].bits for x, y, dtype in (*sides, (problem.m, problem.n, problem.d_dtype)))
    return problem.batch * bits / 8 / gpu.dram_gbps / 1000
