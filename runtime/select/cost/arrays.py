"""Figures of kernels as arrays, whose last axis are the kernels, in named tuples that are joined as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gemmill.library.config.model import GemmConfig

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

Figures = TypeVar("Figures", bound=tuple[Any, ...])
"""A named tuple of arrays, or of such tuples."""


def column(configs: Iterable[GemmConfig], figure: Callable[[GemmConfig], float]) -> Floats:
    """A figure of each kernel."""
    return np.array([figure(config) for config in configs], dtype=np.float64)


def joined(parts: Sequence[Figures]) -> Figures:
    """The figures of the kernels of several."""
    each = zip(*parts, strict=True)
    return type(parts[0])(*(joined(own) if isinstance(own[0], tuple) else np.concatenate(own, axis=-1) for own in each))
