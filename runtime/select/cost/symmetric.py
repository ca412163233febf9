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
    complete = np.ceil(extent / down) - 1  # rows of tiles before the last
    # Lengths of rows repeat, one step longer, after as many rows as it takes to end with a tile again.
    period = across // np.gcd(down.astype(int), across.astype(int))
    step = period * down // across
    row = np.arange(1, period.max() + 1)[:, np.newaxis]
    lengths = np.ceil(row * down / across)
    cycles, rest = np.divmod(complete, period)
    in_period, in_rest = ((lengths * (row <= last)).sum(axis=0) for last in (period, rest))
    before_last = cycles * in_period + step * period * cycles * (cycles - 1) / 2 + in_rest + step * cycles * rest
    return np.asarray(before_last + np.ceil(extent / across))


def multiplied(symmetric: Bools, problem: GemmProblem) -> Floats | float:
    """Return the products of kernels relative to those of a problem."""
    return 1.0 if problem.symmetry == "general" else np.where(symmetric, 1.0, 2.0)
