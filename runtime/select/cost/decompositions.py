"""What each K decomposition adds to the time of a kernel: the second kernel of split-K, sums handed over, shares of
stream-K. The data-parallel one, where a CTA sums all of K, adds nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.config.model import DecompositionName, GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.workspace_layout import EXCHANGE_STEPS, MIN_SHARE, PARTIAL_BYTES
from gemmill.runtime.select.cost.arrays import column

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Floats

# Fitted to runs of 60 kernels on a dozen problems, on an H200.
_REDUCTION_NS = 300.0
"""A second kernel, beyond what launches in a train take."""
_REDUCTION_GBPS = 2200.0
"""Rate at which it reads partial sums, which are in L2 as a rule."""
_LEVEL_NS = 2000.0
"""Handing accumulators to another CTA: stores, a flag, a first load."""
_TAKE_NS_PER_BYTE = 0.8e3 / (128 * 128 * PARTIAL_BYTES)
"""Adding the accumulators of another CTA, by their bytes in one."""
_BRANCHES = 4
"""Of the tree in which sums are added up (emitters/include/gemmill/scheduler/work.cuh)."""
_CLUSTER_NS = 700.0
"""Handing accumulators to another CTA of the cluster, through its shared memory. An estimate, like the next."""
_CLUSTER_BYTES_PER_NS = 100.0
"""Rate at which a CTA sends them."""


def _nothing(splits: Floats, tile: Floats) -> Floats:
    return np.zeros_like(tile)


def _exchange(splits: Floats) -> tuple[Floats, Floats]:
    """What the levels of the tree take in which partial sums are added up, and an element of those that the last CTA
    takes."""
    levels = np.ceil(np.log(np.maximum(splits, 1)) / np.log(_BRANCHES) - 1e-9)
    last = np.ceil(splits / _BRANCHES ** np.maximum(levels - 1, 0)) - 1
    takes = np.where(levels > 0, (_BRANCHES - 1) * (levels - 1) + last, 0)
    return levels * _LEVEL_NS, takes * PARTIAL_BYTES * _TAKE_NS_PER_BYTE


@cache
def _shares() -> Floats:
    """(3, 1024): by the part of the GPU that the tiles of stream-K fill in its last wave, in 1024ths, 0 being all: what
    of a tile its owner leaves to others, and of handing over their sums the time of levels and of an element."""
    filled = np.arange(1, 1024) / 1024
    parts = np.floor(1 / filled)
    each = np.ceil(filled / (1 - filled))
    rest = np.where(filled <= 0.5, 1 - 1 / parts, 1 / (each + 1))
    return np.pad((rest, *_exchange(np.maximum(parts, 2))), ((0, 0), (1, 0)))


def stream_shares(waves: Floats, steps: Floats, tile: Floats) -> tuple[Floats, Floats]:
    """What of the last wave of stream-K, whose CTAs share its tiles, of so many steps along K, no SM has to do; and the
    time in which they add up the sums of a tile of so many elements. ``waves`` are those of whole tiles, in parts."""
    filled = np.ceil(waves * 1024).astype(np.int64) & 1023
    rest, levels_ns, element_ns = _shares().take(filled, axis=1)
    rest = np.minimum(rest, 1 - MIN_SHARE / steps)
    is_shared = rest * steps >= EXCHANGE_STEPS
    return rest * is_shared, (levels_ns + element_ns * tile) * is_shared


def _cluster_ns(splits: Floats, tile: Floats) -> Floats:
    """Time in which the CTAs of a cluster add up the sums of a tile of so many elements."""
    sent = tile * PARTIAL_BYTES * (splits - 1) / splits
    return np.where(splits > 1, _CLUSTER_NS + sent / _CLUSTER_BYTES_PER_NS, 0)


_Added = Callable[["Floats", "Floats"], "Floats"]
"""Nanoseconds, of the splits of K and the elements of an output tile."""

COSTS: Mapping[DecompositionName, _Added] = MappingProxyType(
    {"tiles": _nothing, "splitk": _nothing, "stream": _nothing, "cluster": _cluster_ns}
)
"""What each of :data:`~gemmill.library.decompositions.decomposition.DECOMPOSITIONS` adds to the end of each tile. A
second kernel adds what :func:`second_kernel` says, and stream-K takes parts of waves."""


def cluster_k(config: GemmConfig) -> int:
    """CTAs of a cluster that share K of a tile."""
    return config.scheduler.splits if decomposition_of(config).is_shared_in_clusters else 1


def tile_ns(configs: Sequence[GemmConfig]) -> Floats:
    """What is added to the end of each tile of kernels."""
    splits, tile = column(configs, cluster_k), column(configs, lambda c: c.tile.m * c.tile.n)
    added = np.zeros_like(tile)
    for name, cost in COSTS.items():
        index = np.flatnonzero([config.scheduler.decomposition == name for config in configs])
        added[index] = cost(splits[index], tile[index])
    return added


def second_kernel(configs: Sequence[GemmConfig], slices: Floats) -> tuple[Floats, Floats]:
    """Time of the second kernel of split-K, of kernels in so many slices that have one: nanoseconds of each launch, and
    for an element of D, whose partial sums it adds up."""
    has_second = column(configs, lambda c: decomposition_of(c).has_second_kernel)
    sums = slices * PARTIAL_BYTES
    outputs = column(configs, lambda c: ((c.c.type.bits if c.c else 0) + c.d.type.bits) / 8)
    return has_second * _REDUCTION_NS, has_second * (sums + outputs) / _REDUCTION_GBPS
