"""What the model adds for kernels whose blocks sum parts of K: the second kernel, exchanges, shares of stream-K."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.decompositions.parts import MIN_SHARE, PARTIAL_BYTES
from gemmill.library.legality.resources import EXCHANGE_STEPS
from gemmill.library.problem import GemmProblem

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

# Fitted to runs of 60 kernels on a dozen problems, on an H200.
_REDUCTION_NS = 300.0
"""A second kernel, beyond what launches in a train take."""
_REDUCTION_GBPS = 2200.0
"""Rate at which it reads partial sums, which are in L2 as a rule."""
_LEVEL_NS = 2000.0
"""Handing accumulators to another block: stores, a flag, a first load."""
_TAKE_NS_PER_BYTE = 0.8e3 / (128 * 128 * PARTIAL_BYTES)
"""Adding the accumulators of another block, by their bytes in one block."""
_BRANCHES = 4
"""Of the tree in which parts are added up (emitters/include/gemmill/scheduler/work.cuh)."""
_CLUSTER_NS = 700.0
"""Handing accumulators to another block of the cluster, through its shared memory. An estimate, like the next."""
_CLUSTER_BYTES_PER_NS = 100.0
"""Rate at which a block sends them."""


def reduction_ns(problem: GemmProblem, splits: Floats, bytes_c: Floats, bytes_d: Floats) -> Floats:
    """Time of the second kernel of split-K."""
    elements = problem.m * problem.n * problem.batch
    return _REDUCTION_NS + elements * (splits * PARTIAL_BYTES + bytes_c + bytes_d) / _REDUCTION_GBPS


def exchange_ns(parts: Floats, tile: Floats) -> Floats:
    """Time to add up the parts of an output tile of so many elements; 0 for one part."""
    levels = np.ceil(np.log(np.maximum(parts, 1)) / np.log(_BRANCHES) - 1e-9)
    last = np.ceil(parts / _BRANCHES ** np.maximum(levels - 1, 0)) - 1
    takes = np.where(levels > 0, (_BRANCHES - 1) * (levels - 1) + last, 0)
    return np.asarray(levels * _LEVEL_NS + takes * tile * PARTIAL_BYTES * _TAKE_NS_PER_BYTE)


def cluster_ns(parts: Floats, tile: Floats) -> Floats:
    """Time in which the blocks of a cluster add up the parts of a tile of so many elements; 0 for one part."""
    sent = tile * PARTIAL_BYTES * (parts - 1) / parts
    return np.where(parts > 1, _CLUSTER_NS + sent / _CLUSTER_BYTES_PER_NS, 0)


def stream_ns(
    clusters: Floats, resident: Floats, steps: Floats, step_ns: Floats, store_ns: Floats, tile: Floats
) -> Floats:
    """Time of the busiest SM under stream-K, for so many cluster tiles of so many steps along K."""
    grid = np.minimum(np.maximum(clusters, clusters * steps // MIN_SHARE), resident)
    shared = clusters % grid
    parts = np.maximum(grid // np.maximum(shared, 1), 2)
    each = np.ceil(shared / (grid - shared))
    helped = np.minimum(np.ceil((steps + EXCHANGE_STEPS) * each / (each + 1)), steps)
    owned = np.where(2 * shared <= grid, np.ceil(steps / parts), helped)
    shared = np.where(steps - owned < EXCHANGE_STEPS, 0, shared)
    whole = np.ceil((clusters - shared) / grid)
    sharing_ns = owned * step_ns + store_ns + exchange_ns(parts, tile)
    return np.asarray(whole * (steps * step_ns + store_ns) + np.where(shared > 0, sharing_ns, 0))
