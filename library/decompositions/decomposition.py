"""K decompositions: how the CTAs of a kernel share K of an output tile, and where their partial sums meet.

In the field's words: ``tiles`` is data-parallel; ``splitk`` is split-K whose partial sums a second kernel adds up, in
as many slices as a launch has; ``stream`` is stream-K (Osama et al., Stream-K, PPoPP 2023); ``cluster`` is split-K
among the CTAs of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gemmill.library.config.model import DecompositionName, GemmConfig


@dataclass(frozen=True, slots=True)
class Decomposition:
    """How CTAs share K of an output tile."""

    splits: range = range(1, 2)
    """Among how many they can share it, as they are compiled."""
    is_data_parallel: bool = False
    """Whether one CTA sums all of K of a tile."""
    has_second_kernel: bool = False
    """Whether a CTA stores partial sums, which a second kernel adds up. One cubin serves any number of slices of K,
    which is an argument of the launch."""
    has_shares: bool = False
    """Whether CTAs take equal shares of all steps in place of tiles, and hand over accumulators in global memory."""
    is_shared_in_clusters: bool = False
    """Whether the CTAs that share K of a tile are a cluster."""

    @property
    def has_workspace(self) -> bool:
        """Whether sums meet in global memory: not where one CTA, or one cluster, sums all of K."""
        return self.has_second_kernel or self.has_shares


MAX_SLICES = 256
"""Most slices of K of a launch of a split-K kernel."""
DECOMPOSITIONS: Mapping[DecompositionName, Decomposition] = MappingProxyType(
    {
        "tiles": Decomposition(is_data_parallel=True),
        "splitk": Decomposition(has_second_kernel=True),
        "stream": Decomposition(has_shares=True),
        "cluster": Decomposition(range(2, 5), is_shared_in_clusters=True),
    }
)
"""By the word of a config's ``scheduler.decomposition``."""


def decomposition_of(config: GemmConfig) -> Decomposition:
    """The decomposition of a kernel."""
    return DECOMPOSITIONS[config.scheduler.decomposition]
