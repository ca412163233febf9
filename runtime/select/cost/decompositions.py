"""What each K decomposition adds to the time of a kernel: the second kernel of split-K, sums handed over, shares of
stream-K. The data-parallel one, where a CTA sums all of K, adds nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.config.model import DecompositionName, GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.workspace import EXCHANGE_STEPS, MIN_SHARE, PARTIAL_BYTES
from gemmill.library.problem import GemmProblem
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
_MOST_SUMS = 4096
"""Most partial sums of a tile: more than there are clusters on a GPU."""
_CLUSTER_NS = 700.0
"""Handing accumulators to another CTA of the cluster, through its shared memory. An estimate, like the next."""
_CLUSTER_BYTES_PER_NS = 100.0
"""Rate at which a CTA sends them."""


def _nothing(splits: Floats, tile: Floats) -> Floats:
    return np.zeros_like(tile)


def exchange_ns(splits: Floats, tile: Floats) -> Floats:
    """Time to add up so many partial sums of an output tile of so many elements; 0 for one."""
    index = splits.astype(np.int64)
    levels_ns, element_ns = _exchanges()
    return np.asarray(levels_ns.take(index) + element_ns.take(index) * tile)


@cache
def _exchanges() -> tuple[Floats, Floats]:
    """By the number of partial sums what the levels of the tree take in which they are added up, and an element of
    those that the last CTA takes."""
    splits = np.arange(_MOST_SUMS + 1, dtype=np.float64)
    levels = np.ceil(np.log(np.maximum(splits, 1)) / np.log(_BRANCHES) - 1e-9)
    last = np.ceil(splits / _BRANCHES ** np.maximum(levels - 1, 0)) - 1
    takes = np.where(levels > 0, (_BRANCHES - 1) * (levels - 1) + last, 0)
    return levels * _LEVEL_NS, takes * (PARTIAL_BYTES * _TAKE_NS_PER_BYTE)


def _cluster_ns(splits: Floats, tile: Floats) -> Floats:
    """Time in which the CTAs of a cluster add up the sums of a tile of so many elements."""
    sent = tile * PARTIAL_BYTES * (splits - 1) / splits
    return np.where(splits > 1, _CLUSTER_NS + sent / _CLUSTER_BYTES_PER_NS, 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a K decomposition adds. Functions take the splits of K and the elements of an output tile; those of a second
    kernel and of shares are :func:`second_kernel_ns` and :func:`stream_ns`."""

    tile_ns: Callable[[Floats, Floats], Floats] = _nothing
    """To the end of each tile."""
    kernel_ns: Callable[[Floats, Floats], Floats] = _nothing
    """Once, to the busiest SM."""


COSTS: Mapping[DecompositionName, Cost] = MappingProxyType(
    {
        "tiles": Cost(),
        "splitk": Cost(),
        "stream": Cost(),
        "cluster": Cost(tile_ns=_cluster_ns),
    }
)
"""Of each of :data:`~gemmill.library.decompositions.decomposition.DECOMPOSITIONS`."""


def cluster_k(config: GemmConfig) -> int:
    """CTAs of a cluster that share K of a tile."""
    return config.scheduler.splits if decomposition_of(config).is_shared_in_clusters else 1


def tile_ns(configs: Sequence[GemmConfig]) -> Floats:
    """What is added to the end of each tile of kernels."""
    return _added(configs, lambda cost: cost.tile_ns)


def kernel_ns(configs: Sequence[GemmConfig]) -> Floats:
    """What is added once to the busiest SM under kernels."""
    return _added(configs, lambda cost: cost.kernel_ns)


def _added(configs: Sequence[GemmConfig], figure: Callable[[Cost], Callable[[Floats, Floats], Floats]]) -> Floats:
    splits, tile = column(configs, lambda c: c.scheduler.splits), column(configs, lambda c: c.tile.m * c.tile.n)
    added = np.zeros_like(tile)
    for name, cost in COSTS.items():
        index = np.flatnonzero([config.scheduler.decomposition == name for config in configs])
        added[index] = figure(cost)(splits[index], tile[index])
    return added


def second_kernel_ns(problem: GemmProblem, splits: Floats, output_bytes: float) -> Floats:
    """Time of the second kernel of split-K, by the bytes of an element of C and D."""
    elements = problem.m * problem.n * problem.batch
    return _REDUCTION_NS + elements * (splits * PARTIAL_BYTES + output_bytes) / _REDUCTION_GBPS


def stream_ns(
    clusters: Floats, resident: Floats, steps: Floats, step_ns: Floats, store_ns: Floats, tile: Floats
) -> Floats:
    """Time of the busiest SM under stream-K, for so many cluster tiles of so many steps along K."""
    # Whole numbers below 2^53: the floor of a quotient is exact, and numpy takes a third of the time of // and %.
    grid = np.minimum(np.maximum(clusters, np.floor(clusters * steps / MIN_SHARE)), resident)
    shared = clusters - np.floor(clusters / grid) * grid
    others = grid - shared
    parts = np.maximum(np.floor(grid / np.maximum(shared, 1.0)), 2.0)
    each = np.ceil(shared / others)
    helped = np.minimum(np.ceil((steps + EXCHANGE_STEPS) * each / (each + 1.0)), steps)
    owned = np.where(shared <= others, np.ceil(steps / parts), helped)
    shared *= steps - owned >= EXCHANGE_STEPS
    whole = np.ceil((clusters - shared) / grid)
    sharing_ns = owned * step_ns + store_ns + exchange_ns(parts, tile)
    return np.asarray(whole * (steps * step_ns + store_ns) + (shared > 0.0) * sharing_ns)
