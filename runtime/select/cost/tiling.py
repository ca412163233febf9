"""Tiles and waves: how the output tiles of a problem are shared among the CTAs that a GPU holds.

A kernel is persistent: as many clusters as the GPU holds walk the output tiles, so the tiles take ``waves`` rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import column
from gemmill.runtime.select.cost.decompositions import cluster_k

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Floats, Integers

_MAX_CLUSTER = 16
"""Most CTAs of a cluster (CUDA Programming Guide, "Thread Block Clusters": more than 8 are not portable)."""

_ROWS_OF_SLOTS = np.linspace(0.7, 1.3, 7)[:, np.newaxis]
"""Rows in use of slots, over those that are expected, as DeepGEMM's tests draw them."""


class Tiling(NamedTuple):
    """The tiles of kernels. Of pairs the first row is along M, the second along N."""

    side: Integers
    """Which extents of a problem a kernel sees there: 0 for its M, 1 for its N."""
    tile: Floats
    """Rows and columns of an output tile."""
    cluster: Floats
    """Output tiles of a cluster."""
    cluster_tile: Floats
    """Rows and columns of them."""
    tiles: Floats
    """Output tiles of a cluster in all."""
    ctas: Floats
    """CTAs of a cluster."""
    cluster_size: Integers
    """The same, as an index."""
    splits: Floats
    """CTAs or clusters that K of a tile is split among."""
    clusters: Floats
    """Those that are clusters."""
    step_k: Floats
    """What of K all of these cover in a step."""
    splits_per_element: Floats
    """Splits, by the elements of an output tile."""
    ctas_per_sm: Floats
    """CTAs that share an SM where the problem has as many."""
    counted_ctas: Floats
    """Those of an SM that :attr:`Estimate.utilisation` counts where the problem has fewer."""
    swap_ab: Bools
    """Whether the kernel runs the transposed problem."""

    @classmethod
    def of(
        cls, configs: Sequence[GemmConfig], swap_ab: bool, ctas_per_sm: Sequence[int], counted: Sequence[int]
    ) -> Tiling:
        """Of kernels, for problems as they are or transposed."""
        tile = np.array([(c.tile.m, c.tile.n) for c in configs], np.float64).T
        cluster = np.array([(c.cluster.m, c.cluster.n) for c in configs], np.float64).T
        splits, along_k = column(configs, lambda c: c.scheduler.splits), column(configs, cluster_k)
        ctas = cluster.prod(axis=0) * along_k
        return cls(
            side=np.array([[swap_ab], [not swap_ab]], np.int64).repeat(len(configs), axis=1),
            tile=tile,
            cluster=cluster,
            cluster_tile=tile * cluster,
            tiles=cluster.prod(axis=0),
            ctas=ctas,
            cluster_size=ctas.astype(np.int64),
            splits=splits,
            clusters=splits / along_k,
            step_k=splits * column(configs, lambda c: c.tile.k),
            splits_per_element=splits / tile.prod(axis=0),
            ctas_per_sm=np.array(ctas_per_sm, np.float64),
            counted_ctas=np.array(counted, np.float64),
            swap_ab=np.full(len(configs), swap_ab),
        )


@cache
def _resident(gpu: Gpu) -> Floats:
    """Clusters that a GPU holds, one CTA an SM, by the CTAs of one."""
    ctas = np.maximum(np.arange(_MAX_CLUSTER + 1), 1)
    large = np.where(ctas <= 4, np.floor(gpu.clusters_of_4 * 4 / ctas), gpu.clusters_of_8)
    return np.maximum(np.where(ctas <= 2, np.floor(gpu.sms / ctas), large), 1)


class Work(NamedTuple):
    """What a problem makes of the tiles of kernels."""

    extents: Floats
    """M and N as a kernel sees them, the rows."""
    tiles: Floats
    """Output tiles along them, in whole clusters."""
    clusters: Floats
    """Tiles of whole clusters, each as often as K is divided among clusters."""
    resident: Floats
    """Clusters that the GPU holds, were there one CTA an SM."""
    slots: Floats
    """Clusters that it holds."""
    waves: Floats
    """Rounds that the tiles take; where their number is known on average alone, of the last a half on average."""
    sharing: Floats
    """CTAs that an SM has at the same time."""
    active: Floats
    """CTAs that have work at the same time."""
    steps: Floats
    """Along K, of a tile."""

    @classmethod
    def of(cls, k: Tiling, problem: GemmProblem, gpu: Gpu, asked: GemmProblem | None = None) -> Work:
        """Of a problem on a GPU; ``asked``: the one for which it stands, of the rows of whose groups or slots its M is
        the mean."""
        extents = np.array((problem.m, problem.n), np.float64).take(k.side)
        resident = _resident(gpu).take(k.cluster_size)
        along = np.ceil(extents / k.cluster_tile)
        varied: Bools | bool | None = None  # whether groups or slots differ in their tiles; None without such
        if asked and asked.batching == "grouped":  # if their rows are spread exponentially
            along[0], varied = -1 / np.expm1(-k.cluster_tile[0] / extents[0]), True
        elif asked and asked.expected_rows is not None:
            of_slots = np.ceil(np.minimum(_ROWS_OF_SLOTS * problem.m, asked.m) / k.cluster_tile[0])
            along[0], varied = of_slots.mean(axis=0), of_slots[0] < of_slots[-1]
        clusters = along[0] * along[1] * (problem.batch * k.clusters)
        slots = resident * k.ctas_per_sm
        waves = np.ceil(clusters / slots)
        if varied is not None:
            waves = np.where(varied, np.maximum(clusters / slots + 0.5, 1), waves)
        return cls(
            extents=extents,
            tiles=along * k.cluster,
            clusters=clusters,
            resident=resident,
            slots=slots,
            waves=waves,
            sharing=np.minimum(k.ctas_per_sm, np.ceil(clusters / gpu.sms)),
            active=np.minimum(clusters, slots) * k.ctas,
            steps=np.ceil(problem.k / k.step_k),
        )


def utilisation(k: Tiling, work: Work, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Part of the SMs' rounds that compute something inside the problem."""
    held = np.maximum(work.sharing, k.counted_ctas)
    outputs = problem.m * problem.n * problem.batch
    return outputs / gpu.sms * k.splits_per_element / (work.waves * held)
