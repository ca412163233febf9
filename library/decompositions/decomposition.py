"""Decompositions of K: how the CTAs of a kernel share K of an output tile, and where they add partial sums.

``tiles`` is data-parallel. ``splitk`` is split-K: the launch sets the number of slices, and a second kernel adds the
partial sums. ``stream`` is stream-K (Osama et al., Stream-K, PPoPP 2023). ``cluster`` is split-K among the CTAs of a
cluster.

Two exist for the order in which they add. ``serial`` adds slices as ``splitk`` does, in one CTA for each tile, so that
problems with enough tiles can have the bits of split-K. ``tree`` is ``splitk`` with slices added in a binary tree, so
that K over several GPUs can have the bits of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gemmill.library.config.model import DecompositionName, GemmConfig


class Decomposition(NamedTuple):
    """How CTAs share K of an output tile."""

    splits: range = range(1, 2)
    """The allowed values of ``scheduler.splits``, which is fixed at compile time."""
    slices: Sequence[int] = (1,)
    """The allowed numbers of slices of K of a launch. If there are several, one cubin supports all of them."""
    is_data_parallel: bool = False
    """Whether one CTA sums all of K for a tile."""
    has_second_kernel: bool = False
    """Whether CTAs store partial sums that a second kernel adds."""
    adds_in_tree: bool = False
    """Whether the second kernel adds partial sums in a binary tree, not in order."""
    is_serial: bool = False
    """Whether one CTA sums the slices of K of a tile one after another."""
    has_shares: bool = False
    """Whether CTAs process equal shares of all K steps instead of tiles, and exchange accumulators in global memory."""
    is_shared_in_clusters: bool = False
    """Whether the CTAs that share K of a tile form a cluster."""
    is_for_bits: bool = False
    """Whether its kernels are only chosen for the order in which they add, not where any order will do."""

    @property
    def has_slices(self) -> bool:
        """Whether the launch sets the number of slices of K."""
        return len(self.slices) > 1

    @property
    def has_workspace(self) -> bool:
        """Whether partial sums go through global memory. They do not if one CTA or one cluster sums all of K."""
        return self.has_second_kernel or self.has_shares


MAX_SLICES = 256
"""Most slices of K in a launch of a split-K kernel."""
DECOMPOSITIONS: Mapping[DecompositionName, Decomposition] = MappingProxyType(
    {
        "tiles": Decomposition(is_data_parallel=True),
        "splitk": Decomposition(slices=range(1, MAX_SLICES + 1), has_second_kernel=True),
        "stream": Decomposition(has_shares=True),
        "cluster": Decomposition(range(2, 5), is_shared_in_clusters=True),
        "serial": Decomposition(slices=range(1, 9), is_serial=True, is_for_bits=True),
        "tree": Decomposition(slices=(1, 2, 4, 8), has_second_kernel=True, adds_in_tree=True, is_for_bits=True),
    }
)
"""Decompositions by the value of ``scheduler.decomposition``."""


def reduction_groups(slices: int) -> int:
    """Return in how many groups the second kernel of ``splitk`` adds the sums of slices, each in order, before it adds
    the sums of groups in order (``kernel/reduction.cuh``)."""
    return next((groups for most, groups in ((8, 1), (16, 2), (32, 4)) if slices <= most), 8)


def decomposition_of(config: GemmConfig) -> Decomposition:
    """The decomposition of a kernel."""
    return DECOMPOSITIONS[config.scheduler.decomposition]
