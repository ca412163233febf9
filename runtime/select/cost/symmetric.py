"""Work of kernels on a symmetric D: those for it multiply the tiles that meet the lower triangle, others all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.problem import GemmProblem

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Floats


def triangle(tile: Floats, extent: int) -> Floats:
    """Return how many tiles meet the lower triangle of a square matrix; ``tile`` is (2, kernels)."""
    down, across = tile
    ends = np.minimum((np.arange(np.ceil(extent / down).max())[:, np.newaxis] + 1) * down, extent)
    is_row = np.diff(ends, axis=0, prepend=0) > 0
    return np.asarray((np.ceil(ends / across) * is_row).sum(axis=0))


def multiplied(symmetric: Bools, problem: GemmProblem) -> Floats | float:
    """Return the products of kernels relative to those of a problem."""
    return 1.0 if problem.symmetry == "general" else np.where(symmetric, 1.0, 2.0)
