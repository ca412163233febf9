"""The order of output tiles (``TileOrder`` in scheduler/work.cuh, and groups.cuh), and the waves that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.library.config.model import GemmConfig


@dataclass(frozen=True)
class Raster:
    """The cluster tiles of one matrix."""

    clusters_m: int
    clusters_n: int
    along_m: bool
    """Whether tiles go along M within a group."""
    swizzle: int
    """Cluster tiles across, that are walked as one group."""

    @classmethod
    def of(cls, config: GemmConfig, m: int, n: int) -> Raster:
        """Of M x N outputs, as the kernel sees them."""
        tile_m, tile_n = config.tile.m * config.cluster.m, config.tile.n * config.cluster.n
        along_m = config.scheduler.raster == "m"
        return cls(-(-m // tile_m), -(-n // tile_n), along_m, config.scheduler.swizzle_size)

    @property
    def count(self) -> int:
        """Cluster tiles."""
        return self.clusters_m * self.clusters_n

    def origin(self, index: int) -> tuple[int, int]:
        """Cluster tile along M and N that is the index-th."""
        along_extent, across_extent = self.clusters_m, self.clusters_n
        if not self.along_m:
            along_extent, across_extent = across_extent, along_extent
        group, within = divmod(index, self.swizzle * along_extent)
        width = min(self.swizzle, across_extent - group * self.swizzle)
        along, across = within // width, group * self.swizzle + within % width
        return (along, across) if self.along_m else (across, along)

    def index(self, m: int, n: int) -> int:
        """When a cluster tile comes; the inverse of :meth:`origin`."""
        along, across = (m, n) if self.along_m else (n, m)
        along_extent, across_extent = self.clusters_m, self.clusters_n
        if not self.along_m:
            along_extent, across_extent = across_extent, along_extent
        group, within = divmod(across, self.swizzle)
        width = min(self.swizzle, across_extent - group * self.swizzle)
        return group * self.swizzle * along_extent + along * width + within


class Matrix(NamedTuple):
    """A product that a kernel makes, of a batch or for a group, as the kernel sees it."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Waves:
    """How a problem fills a GPU."""

    problem: str
    """In a line."""
    gpu: str
    matrices: Sequence[Matrix]
    """One that all of a batch are like; or of each group, in order."""
    slots: int
    """Clusters that the GPU holds at a time."""
    units: int
    """Cluster tiles of all matrices, each as often as K is split among clusters."""
    grouped: bool = False
    """Whether ``matrices`` are groups."""
    swapped: bool = False
    """Whether the kernel runs the transposed problem."""

    @property
    def waves(self) -> int:
        """Rounds that the units take."""
        return -(-self.units // self.slots)

    @property
    def loss(self) -> float:
        """Part of all rounds in which a cluster of the last one has no work, from 0 to 1."""
        return 1 - self.units / (self.waves * self.slots) if self.units else 0.0

    def rasters(self, config: GemmConfig) -> list[Raster]:
        """Of each of ``matrices``, which a kernel walks through one after the other."""
        return [Raster.of(config, matrix.m, matrix.n) for matrix in self.matrices]

    def tiles(self, config: GemmConfig) -> int:
        """Cluster tiles of all of ``matrices``."""
        return sum(order.count for order in self.rasters(config))
