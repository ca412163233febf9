"""Figures of kernels as arrays, whose last axis are the kernels."""

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
"""Arrays by name; a float where all kernels have it equal."""


def column(configs: Iterable[GemmConfig], figure: Callable[[GemmConfig], float]) -> Floats:
    """A figure of each kernel."""
    return np.array([figure(config) for config in configs], dtype=np.float64)


def soft_maximum(times: Iterable[Floats | float]) -> Floats:
    """The maximum of times that compete and so delay each other where they are about as slow: their 8-norm, of squares
    and square roots, which are a tenth of the cost of other powers."""
    total: Any = 0.0
    for time in times:
        total = total + eighth_power(time)
    return eighth_root(total)


def twelfth_power(times: Floats | float) -> Any:
    """Times to the power of twelve."""
    squares = times * times
    fourths = squares * squares
    return fourths * fourths * fourths


def twelfth_root(powers: Floats) -> Floats:
    """What :func:`twelfth_power` was taken of."""
    return np.asarray(np.sqrt(np.sqrt(np.cbrt(powers))))


def eighth_power(times: Floats | float) -> Any:
    """Times to the power of eight."""
    squares = times * times
    squares = squares * squares
    return squares * squares


def eighth_root(powers: Floats) -> Floats:
    """What :func:`eighth_power` was taken of."""
    return np.asarray(np.sqrt(np.sqrt(np.sqrt(powers))))
