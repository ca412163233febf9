"""Properties of kernels as arrays; the last axis runs over the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmill.library.config.model import GemmConfig

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

Columns = dict[str, Any]
"""Arrays by name; a float where all kernels have the same value."""


def column(configs: Iterable[GemmConfig], figure: Callable[[GemmConfig], float]) -> Floats:
    """Return one property of each kernel as an array."""
    return np.array([figure(config) for config in configs], dtype=np.float64)


def soft_maximum(times: Iterable[Floats | float]) -> Floats:
    """Return a soft maximum of times that overlap and delay each other where they are similar: their 8-norm. It uses
    squares and square roots, which cost a tenth of other powers."""
    total: Any = 0.0
    for time in times:
        total = total + eighth_power(time)
    return eighth_root(total)


def fourth_power(times: Floats | float) -> Any:
    """Return times to the power of four."""
    squares = times * times
    return squares * squares


def twelfth_power(times: Floats | float) -> Any:
    """Return times to the power of twelve."""
    fourths = fourth_power(times)
    return fourths * fourths * fourths


def twelfth_root(powers: Floats) -> Floats:
    """Return the inverse of :func:`twelfth_power`."""
    return np.asarray(np.sqrt(np.sqrt(np.cbrt(powers))))


def eighth_power(times: Floats | float) -> Any:
    """Return times to the power of eight."""
    fourths = fourth_power(times)
    return fourths * fourths


def eighth_root(powers: Floats) -> Floats:
    """Return the inverse of :func:`eighth_power`."""
    return np.asarray(np.sqrt(np.sqrt(np.sqrt(powers))))
