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


class Tiling(NamedTuple):
    """The tiles of kernels."""

    m: Floats
    n: Floats
    k: Floats
    elements: Floats
    """Of an output tile."""
    cluster_m: Floats
    cluster_n: Floats
    cluster_k: Floats
    """CTAs of a cluster that share K of a tile."""
    ctas: Floats
    """Of a cluster."""
    cluster_size: Integers
    """The same, as an index."""
    splits: Floats
    """CTAs or clusters that K of a tile is split among."""
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
        tile_m, tile_n = column(configs, lambda c: c.tile.m), column(configs, lambda c: c.tile.n)
        cluster_m, cluster_n = column(configs, lambda c: c.cluster.m), column(configs, lambda c: c.cluster.n)
        ctas = cluster_m * cluster_n * column(configs, cluster_k)
        return cls(
            m=tile_m,
            n=tile_n,
            k=column(configs, lambda c: c.tile.k),
            elements=tile_m * tile_n,
            cluster_m=cluster_m,
            cluster_n=cluster_n,
            cluster_k=column(configs, cluster_k),
            ctas=ctas,
            cluster_size=ctas.astype(np.int64),
            splits=column(configs, lambda c: c.scheduler.splits),
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

    m: Floats
    """M and N as a kernel sees them."""
    n: Floats
    tiles_m: Floats
    """Output tiles along M, in whole clusters; so along N."""
    tiles_n: Floats
    clusters: Floats
    """Tiles of whole clusters, each as often as K is divided among clusters."""
    resident: Floats
    """Clusters that the GPU holds, were there one CTA an SM."""
    slots: Floats
    """Clusters that it holds."""
    waves: Floats
    """Rounds that the tiles take."""
    sharing: Floats
    """CTAs that an SM has at the same time."""
    active: Floats
    """CTAs that have work at the same time."""
    steps: Floats
    """Along K, of a tile."""

    @classmethod
    def of(cls, k: Tiling, problem: GemmProblem, gpu: Gpu, uneven: bool) -> Work:
        """Of a problem on a GPU; ``uneven``: its M is the mean of those of groups."""
        m, n = (np.where(k.swap_ab, float(y), float(x)) for x, y in ((problem.m, problem.n), (problem.n, problem.m)))
        resident = _resident(gpu).take(k.cluster_size)
        clusters_m = np.ceil(np.ceil(m / k.m) / k.cluster_m)
        if uneven:  # on average, if the rows of groups are spread exponentially
            clusters_m = -1 / np.expm1(-k.m * k.cluster_m / m)
        clusters_n = np.ceil(np.ceil(n / k.n) / k.cluster_n)
        clusters = clusters_m * clusters_n * problem.batch * k.splits / k.cluster_k
        slots = resident * k.ctas_per_sm
        return cls(
            m=m,
            n=n,
            tiles_m=clusters_m * k.cluster_m,
            tiles_n=clusters_n * k.cluster_n,
            clusters=clusters,
            resident=resident,
            slots=slots,
            waves=np.ceil(clusters / slots),
            sharing=np.minimum(k.ctas_per_sm, np.ceil(clusters / gpu.sms)),
            active=np.minimum(clusters, slots) * k.ctas,
            steps=np.ceil(problem.k / k.splits / k.k),
        )


def utilisation(k: Tiling, work: Work, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Part of the SMs' rounds that compute something inside the problem."""
    held = np.maximum(work.sharing, k.counted_ctas)
    outputs = problem.m * problem.n * problem.batch
    useful = outputs / (work.waves * work.resident * held * k.ctas * k.elements / k.splits)
    return useful * work.resident * k.ctas / gpu.sms
