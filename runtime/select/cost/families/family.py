"""What the model needs of a kernel family."""

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
"""Part of DRAM's rate that copies by threads reach, in place of TMA."""
LATENCY_NS = 1430.0
"""From the request of a stage to its arrival, under load. Fitted to measurements on an H200, with its row of
library/arch.py."""


def _one(config: GemmConfig) -> int:
    return 1


def _once(config: GemmConfig) -> float:
    return 1.0


def _never(config: GemmConfig) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Family:
    """A kernel family, to the model."""

    columns: Callable[[Sequence[GemmConfig], Bools, Columns, Gpu], Columns]
    """Makes the family's own columns of kernels, from whether each runs the transposed problem and the common columns
    (:mod:`~gemmill.runtime.select.cost.table`)."""
    busiest_ns: Callable[[Columns, Columns, GemmProblem, Gpu], Floats]
    """Nanoseconds of the busiest SM, from the first load to the last store: of the family's columns and the work that a
    strided batch has for each kernel (:func:`~gemmill.runtime.select.cost.model.analytic`). Adds ``paces`` to the
    work: times of a step along K by tensor cores, loads from L2 and the latency of loads."""
    is_fitted: Callable[[GemmConfig], bool] = _never
    """Whether the network corrects a kernel. Others do what these cannot, or compete among themselves."""
    ctas_per_sm: Callable[[GemmConfig], int] = _one
    """CTAs that share an SM where the problem has as many."""
    counted_ctas: Callable[[GemmConfig], int] = _one
    """Those that utilisation counts where the problem has fewer."""
    storing: Callable[[GemmConfig], float] = _once
    """How many times as long a tile takes to store as it does by TMA."""
    is_preferred: bool = False
    """Whether the others are left out where all operands are aligned and a kernel of it, or of another such family,
    runs the problem: they are slower then."""
    most_rows: int = MAX_EXTENT
    """The most rows, the fewer of M and N, with which its kernels are looked at where all operands are aligned and
    others run the problem."""
    sums_exactly: bool = False
    """Whether two-level accumulation adds nothing to its sums."""
    multiplies_by: str = "tensor cores"
    """What multiplies."""
    takes_turns: Callable[[GemmConfig], bool] = _never
    """Whether its consumers take turns at the tensor cores, each with a tile of its own."""
    streams: bool = False
    """Whether it does nothing that takes time but move B."""
    dram_share: float = 1.0
    """Part of DRAM's rate that its loads reach."""
