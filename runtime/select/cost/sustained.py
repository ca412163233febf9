"""Time in a program that runs for seconds, which the power limit holds: a law beside the model of a lone launch.

The GPU's clock falls until what is drawn is within the limit, so a kernel that spends less energy a product runs at a
higher clock. What kernels differ in most is the bytes that TMA writes to shared memory for a product, (M + N) / (M N)
of a tile. Geometric means of the model's time and of the least time under the limit, and a factor for these bytes:

    us = scale * model_us ** burst * power_us ** (1 - burst) * exp(bytes * moved)

fitted to records of the regime ``sustained`` by `gemmill train`; docs/performance/sustained.md has how well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.roofline import power_ns
from gemmill.runtime.select.models import content_of, path_of, sound

if TYPE_CHECKING:
    from gemmill.library.arch import Gpu
    from gemmill.runtime.select.cost.arrays import Floats

VERSION = 1
"""Of the files."""
HELD = 0.6
"""A long run is held by the power limit from this share on of the time that the model says of a lone launch."""


class Law(NamedTuple):
    """The coefficients, for operands of one type."""

    burst: float
    """Weight of the model's time, of 1."""
    bytes: float
    """By how much the logarithm of time grows for a byte that is written to shared memory for a product."""
    scale: float
    """What is left."""

    def us(self, model_us: Floats, power_us: float, moved: Floats) -> Floats:
        """Microseconds in a long run.

        Args:
            model_us: of a lone launch.
            power_us: least time under the power limit, whatever the kernel.
            moved: bytes to shared memory for a product.
        """
        rate = model_us**self.burst * power_us ** (1 - self.burst)
        return np.asarray(self.scale * rate * np.exp(self.bytes * moved))


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
        return {dtype: Law(*map(float, own["law"])) for dtype, own in content["types"].items()}


def law_of(problem: GemmProblem, gpu: Gpu) -> Law | None:
    """The law for a problem; None where none was fitted to such: to one matrix of A and B of a type alike."""
    if problem.a_dtype != problem.b_dtype or problem.batching != "strided":
        return None
    return laws(gpu.name, gpu.model).get(problem.a_dtype)


def power_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Least microseconds under the power limit, whatever the kernel."""
    widest = max(DTYPES[dtype].bits for dtype in (problem.a_dtype, problem.b_dtype)) / 8
    return float(power_ns(problem, np.array(widest), gpu)) / 1000


def bytes_moved(tile_m: Floats, tile_n: Floats, element_bytes: float) -> Floats:
    """Bytes that are written to shared memory for a product, by a kernel's tile."""
    return element_bytes * (tile_m + tile_n) / (tile_m * tile_n)
