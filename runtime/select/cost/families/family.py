"""What the model asks a kernel family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.runtime.select.cost.roofline import BOUNDS

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.sm import SmTime, SmWork

DIRECT_DRAM = 0.95
"""Part of DRAM's rate that copies by threads reach, in place of TMA."""


class Features(Protocol):
    """A named tuple of figures of the kernels of one family."""

    def cost(self, work: SmWork, problem: GemmProblem, gpu: Gpu) -> SmTime:
        """What the busiest SM takes.

        Args:
            work: what the problem has it do under these kernels.
            problem: a strided batch of equal matrices.
            gpu: where.
        """
        ...


def _one(config: GemmConfig) -> int:
    return 1


def _once(config: GemmConfig) -> float:
    return 1.0


def _never(config: GemmConfig) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Family:
    """A kernel family, to the model."""

    features: Callable[[Sequence[GemmConfig], bool], Any]
    """Makes the :class:`Features` of kernels, for problems as they are or transposed."""
    is_corrected: Callable[[GemmConfig], bool] = _never
    """Whether the residual model knows a kernel. It serves what the others cannot, or they compete among themselves."""
    ctas_per_sm: Callable[[GemmConfig], int] = _one
    """CTAs that share an SM where the problem has as many."""
    counted_ctas: Callable[[GemmConfig], int] = _one
    """Those that utilisation counts where the problem has fewer."""
    storing: Callable[[GemmConfig], float] = _once
    """How many times as long a tile takes to store as it does by TMA."""
    is_preferred: bool = False
    """Whether it is asked alone where all operands are aligned and it, or another such, serves: the others are slower
    then."""
    most_rows: int = MAX_EXTENT
    """The most rows, the fewer of M and N, where it is asked when all operands are aligned and others serve: with more
    the model has it at twice their time or more."""
    sums_exactly: bool = False
    """Whether there is nothing to promote of its sums."""
    multiplies_by: str = BOUNDS[0]
    """What multiplies."""
    takes_turns: Callable[[GemmConfig], bool] = _never
    """Whether its consumers take turns at the tensor cores, each with a tile of its own."""
    streams: bool = False
    """Whether it does nothing that takes time but move B."""
    dram_share: float = 1.0
    """Part of DRAM's rate that its loads reach."""
