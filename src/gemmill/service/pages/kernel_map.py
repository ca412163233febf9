"""The map of kernels by M and N: which kernel is selected where, each with a colour of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import Choice

COLOURS = 11
"""Colours of ``style.css``. Further kernels, which have the fewest cells, share one more colour."""
_EXTENTS = (16, 64, 256, 1024, 4096, 16384)
"""Values of M and N."""


class MapKernel(NamedTuple):
    """A kernel of the map."""

    kernel: SlicedKernel
    number: int
    """From 1, by number of cells."""
    cells: int

    @property
    def colour(self) -> int:
        """Number of the colour, from 0; :data:`COLOURS` for the common colour of rare kernels."""
        return min(self.number - 1, COLOURS)


class Cell(NamedTuple):
    """A problem of the map and its kernel."""

    problem: GemmProblem
    us: float
    """Expected time in microseconds."""
    kernel: MapKernel


@dataclass(frozen=True)
class KernelMap:
    """The kernels selected for problems that differ only in M and N."""

    extents: tuple[int, ...]
    """Values of M, one for each row, and of N."""
    rows: list[list[Cell | None]]
    """None if no kernel supports the problem."""
    kernels: list[MapKernel]

    @classmethod
    def of(cls, registry: Registry, problem: GemmProblem, bits: str) -> KernelMap:
        """Select the kernels for a problem with every M and N of the map."""
        choices = [[_choice(registry, replace(problem, m=m, n=n), bits) for n in _EXTENTS] for m in _EXTENTS]
        cells = Counter(choice.kernel for row in choices for choice in row if choice is not None)
        kernels = [MapKernel(kernel, 1 + i, count) for i, (kernel, count) in enumerate(cells.most_common())]
        by_kernel = {each.kernel: each for each in kernels}

        def cell(choice: Choice | None) -> Cell | None:
            if choice is None or choice.problem is None:
                return None
            return Cell(choice.problem, choice.predicted_us, by_kernel[choice.kernel])

        return cls(_EXTENTS, [[*map(cell, row)] for row in choices], kernels)

    @property
    def common(self) -> list[MapKernel]:
        """The kernels that have a colour of their own."""
        return self.kernels[:COLOURS]

    @property
    def rare(self) -> list[MapKernel]:
        """The kernels that share a colour."""
        return self.kernels[COLOURS:]


def _choice(registry: Registry, problem: GemmProblem, bits: str) -> Choice | None:
    try:
        return registry.select(problem, bits=bits)
    except ProblemError:
        return None
