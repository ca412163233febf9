"""Decompositions of K: how the CTAs of a kernel share K of an output tile, and where they add partial sums.

``tiles`` is data-parallel. ``splitk`` is split-K: the launch sets the number of slices, and a second kernel adds the
partial sums. ``stream`` is stream-K (Osama et al., Stream-K, PPoPP 2023). ``cluster`` is split-K among the CTAs of a
cluster.
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
    """The allowed values of ``scheduler.splits``, which is fixed at compile time."""
    is_data_parallel: bool = False
    """Whether one CTA sums all of K for a tile."""
    has_second_kernel: bool = False
    """Whether CTAs store partial sums that a second kernel adds. The number of slices of K is an argument of the
    launch, so one cubin supports any number."""
    has_shares: bool = False
    """Whether CTAs process equal shares of all K steps instead of tiles, and exchange accumulators in global memory."""
    is_shared_in_clusters: bool = False
    """Whether the CTAs that share K of a tile form a cluster."""

    @property
    def has_workspace(self) -> bool:
        """Whether partial sums go through global memory. They do not if one CTA or one cluster sums all of K."""
        return self.has_second_kernel or self.has_shares


MAX_SLICES = 256
"""Most slices of K in a launch of a split-K kernel."""
DECOMPOSITIONS: Mapping[DecompositionName, Decomposition] = MappingProxyType(
    {
        "tiles": Decomposition(is_data_parallel=True),
        "splitk": Decomposition(has_second_kernel=True),
        "stream": Decomposition(has_shares=True),
        "cluster": Decomposition(range(2, 5), is_shared_in_clusters=True),
    }
)
"""Decompositions by the value of ``scheduler.decomposition``."""


def decomposition_of(config: GemmConfig) -> Decomposition:
    """The decomposition of a kernel."""
    return DECOMPOSITIONS[config.scheduler.decomposition]
