"""The interface of a kernel family to the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.problem import MAX_EXTENT, GemmProblem

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats

DIRECT_DRAM = 0.95
"""Share of DRAM's rate that copies by threads reach, relative to TMA."""
LATENCY_NS = 1430.0
"""Time from the request of a stage to its arrival, under load. Fitted to measurements on an H200, with its row in
library/arch.py."""


def _one(config: GemmConfig) -> int:
    return 1


def _once(config: GemmConfig) -> float:
    return 1.0


def _none(config: GemmConfig) -> float:
    return 0.0


def _never(config: GemmConfig) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Family:
    """A kernel family as the model uses it."""

    columns: Callable[[Sequence[GemmConfig], Bools, Columns, Gpu], Columns]
    """Makes the family's own columns from whether each kernel runs the transposed problem, and from the common columns
    (:mod:`~gemmill.runtime.select.cost.table`)."""
    busiest_ns: Callable[[Columns, Columns, GemmProblem, Gpu], Floats]
    """Nanoseconds of the busiest SM, from the first load to the last store, from the family's columns and the work of a
    strided batch for each kernel (:func:`~gemmill.runtime.select.cost.model.analytic`). Adds ``paces`` to the work: the
    times per step along K of the tensor cores, of loads from L2 and of the latency of loads."""
    is_fitted: Callable[[GemmConfig], bool] = _never
    """Whether the network corrects a kernel. The other kernels run problems that these cannot, or compete among
    themselves."""
    ctas_per_sm: Callable[[GemmConfig], int] = _one
    """CTAs that share an SM where the problem has enough of them."""
    counted_ctas: Callable[[GemmConfig], int] = _one
    """CTAs per SM in the utilisation where the problem has fewer."""
    storing: Callable[[GemmConfig], float] = _once
    """Time to store a tile relative to a store by TMA."""
    part_sectors: Callable[[GemmConfig], float] = _none
    """Additional time in which DRAM takes a D stored in parts of sectors, relative to whole ones."""
    is_preferred: bool = False
    """Whether kernels of other families are left out where all operands are aligned and a kernel of this or another
    preferred family supports the problem: the others are slower then."""
    most_rows: int = MAX_EXTENT
    """Most rows (the smaller of M and N) for which its kernels are considered where all operands are aligned and other
    families support the problem."""
    sums_exactly: bool = False
    """Whether two-level accumulation makes no difference, because its sums are exact anyway."""
    multiplies_by: str = "tensor cores"
    """The units that multiply, for messages."""
    takes_turns: Callable[[GemmConfig], bool] = _never
    """Whether its consumer warpgroups alternate on the tensor cores, each with its own tile."""
    streams: bool = False
    """Whether its time is only that of moving B."""
    dram_share: float = 1.0
    """Share of DRAM's rate that its loads reach."""
