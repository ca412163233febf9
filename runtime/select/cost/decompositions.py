"""Times that each K decomposition adds to a kernel: the second kernel of split-K, the exchange of partial sums, and the
shares of stream-K. A data-parallel kernel, in which one CTA sums all of K, adds nothing."""

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

# Fitted to runs of 60 kernels on a dozen problems on an H200.
_REDUCTION_NS = 300.0
"""Cost of a second kernel, beyond that of a launch in a sequence of launches."""
_REDUCTION_GBPS = 2200.0
"""Rate at which it reads partial sums, which are usually in L2."""
_LEVEL_NS = 2000.0
"""Handing accumulators to another CTA: stores, a flag and a first load."""
_TAKE_NS_PER_BYTE = 0.8e3 / (128 * 128 * PARTIAL_BYTES)
"""Adding the accumulators of another CTA, per byte of one CTA."""
_BRANCHES = 4
"""Branching factor of the tree that adds partial sums (emitters/include/gemmill/scheduler/work.cuh)."""
_CLUSTER_NS = 700.0
"""Handing accumulators to another CTA of the cluster through shared memory. An estimate, like the next constant."""
_CLUSTER_BYTES_PER_NS = 100.0
"""Rate at which a CTA sends them."""
_SLICE_NS = 60.0
"""Draining the MMAs of a slice in serial split-K. An estimate, like the next constant."""
_SUMS_PER_NS = 220.0
"""Rate at which a CTA adds the sums of a slice: 128 in each clock."""


def _zeros(splits: Floats, tile: Floats) -> Floats:
    return np.zeros_like(tile)


def _exchange(splits: Floats) -> tuple[Floats, Floats]:
    """Return the time of the levels of the tree that adds partial sums, and the time per element of the sums that the
    last CTA adds."""
    levels = np.ceil(np.log(np.maximum(splits, 1)) / np.log(_BRANCHES) - 1e-9)
    last = np.ceil(splits / _BRANCHES ** np.maximum(levels - 1, 0)) - 1
    takes = np.where(levels > 0, (_BRANCHES - 1) * (levels - 1) + last, 0)
    return levels * _LEVEL_NS, takes * PARTIAL_BYTES * _TAKE_NS_PER_BYTE


@cache
def _shares() -> Floats:
    """Return a table (3, 1024), indexed by how much of the last wave the tiles of stream-K fill, in 1024ths (0 means
    all). Its rows are the share of a tile that its owner leaves to other CTAs, and the time of the exchange: of its
    levels, and per element."""
    filled = np.arange(1, 1024) / 1024
    parts = np.floor(1 / filled)
    tiles_per_helper = np.ceil(filled / (1 - filled))
    rest = np.where(filled <= 0.5, 1 - 1 / parts, 1 / (tiles_per_helper + 1))
    return np.pad((rest, *_exchange(np.maximum(parts, 2))), ((0, 0), (1, 0)))


def stream_shares(waves: Floats, steps: Floats, tile: Floats) -> tuple[Floats, Floats]:
    """Return the part of the last stream-K wave that the SMs save by sharing its tiles, and the time in which they add
    the sums of a tile.

    ``waves`` are waves of whole tiles, with fractions; ``steps`` are the steps of a tile along K; ``tile`` is its
    number of elements.
    """
    filled = np.ceil(waves * 1024).astype(np.int64) & 1023
    rest, levels_ns, element_ns = _shares().take(filled, axis=1)
    rest = np.minimum(rest, 1 - MIN_SHARE / steps)
    is_shared = rest * steps >= EXCHANGE_STEPS
    return rest * is_shared, (levels_ns + element_ns * tile) * is_shared


def _cluster_ns(splits: Floats, tile: Floats) -> Floats:
    """Return the time in which the CTAs of a cluster add the sums of a tile with ``tile`` elements."""
    sent = tile * PARTIAL_BYTES * (splits - 1) / splits
    return np.where(splits > 1, _CLUSTER_NS + sent / _CLUSTER_BYTES_PER_NS, 0)


def _serial_ns(splits: Floats, tile: Floats) -> Floats:
    """Return the time in which a CTA waits for the sums of each slice of a tile and adds them."""
    return splits * (_SLICE_NS + tile / _SUMS_PER_NS)


_Added = Callable[["Floats", "Floats"], "Floats"]
"""Nanoseconds as a function of the splits of K and the elements of an output tile."""

COSTS: Mapping[DecompositionName, _Added] = MappingProxyType(
    {
        "tiles": _zeros,
        "splitk": _zeros,
        "stream": _zeros,
        "cluster": _cluster_ns,
        "serial": _serial_ns,
        "tree": _zeros,
    }
)
"""Time that each of :data:`~gemmill.library.decompositions.decomposition.DECOMPOSITIONS` adds at the end of each tile.
:func:`second_kernel` covers a second kernel; stream-K takes parts of waves."""


def cluster_k(config: GemmConfig) -> int:
    """Return how many CTAs of a cluster share K of a tile."""
    return config.scheduler.splits if decomposition_of(config).is_shared_in_clusters else 1


def is_serial(configs: Sequence[GemmConfig]) -> Floats:
    """Return whether one CTA sums the slices of K of a tile one after another, for each kernel."""
    return column(configs, lambda c: decomposition_of(c).is_serial)


def tile_ns(configs: Sequence[GemmConfig], slices: Floats) -> Floats:
    """Return the time added at the end of each tile, for each kernel with ``slices`` slices."""
    splits = np.where(is_serial(configs) > 0, slices, column(configs, cluster_k))
    tile = column(configs, lambda c: c.tile.m * c.tile.n)
    added = np.zeros_like(tile)
    for name, cost in COSTS.items():
        index = np.flatnonzero([config.scheduler.decomposition == name for config in configs])
        added[index] = cost(splits[index], tile[index])
    return added


def second_kernel(configs: Sequence[GemmConfig], slices: Floats) -> tuple[Floats, Floats]:
    """Return the time of the second kernel of split-K, for each kernel with ``slices`` slices that has one: nanoseconds
    per launch, and per element of D whose partial sums it adds."""
    has_second = column(configs, lambda c: decomposition_of(c).has_second_kernel)
    sums = slices * PARTIAL_BYTES
    outputs = column(configs, lambda c: ((c.c.type.bits if c.c else 0) + c.d.type.bits) / 8)
    return has_second * _REDUCTION_NS, has_second * (sums + outputs) / _REDUCTION_GBPS
