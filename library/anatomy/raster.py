"""The order of output tiles (``TileOrder`` in scheduler/work.cuh, and groups.cuh), the waves that they take, drawn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.library.anatomy.sheet import LEFT, WIDTH, Kernel, Sheet
from gemmill.library.config.model import GemmConfig
from gemmill.library.drawing.cells import SHADES
from gemmill.library.drawing.svg import CHARACTER

MOST = 64
"""Rows and columns of cluster tiles that are drawn; a line says what lies beyond."""


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


def draw_raster(sheet: Sheet, kernel: Kernel, waves: Waves) -> None:
    """The cluster tiles of a matrix, or of every group, in their order, coloured by wave."""
    sheet.heading(f"The raster over {waves.problem}")
    config = kernel.config
    orders, count = waves.rasters(config), waves.tiles(config)
    tiles, whole = ("cluster tiles", "clusters") if kernel.launch.cluster_ctas > 1 else ("tiles", "CTAs")
    size = f"{config.tile.m * config.cluster.m}x{config.tile.n * config.cluster.n}"
    first = orders[0]
    of = f"{first.clusters_m} x {first.clusters_n} {tiles} of {size}"
    if waves.grouped:
        of = f"{len(orders)} groups, one after the other, of {count} {tiles} of {size}"
    transposed = ", of the transposed problem" if waves.swapped else ""
    sheet.words(
        f"{of}, along {'M' if first.along_m else 'N'} in strips of {first.swizzle}{transposed}. The {waves.gpu} holds "
        f"{waves.slots:,} {whole} at a time: {waves.units:,} units of work are {waves.waves:,} "
        f"wave{'s' * (waves.waves != 1)}, and {waves.loss:.1%} of their places have no unit of their own, all in the "
        "last. Colours are waves, numbers the order."
    )
    sheet.text(LEFT + 50, sheet.bottom + 18, f"{tiles}: N to the right, M down")
    sheet.bottom += 28
    shown = _rasters(sheet, waves, orders, count)
    if waves.grouped and shown < len(orders):
        sheet.words(f"Drawn are {shown} of {len(orders)} groups; of each the first {MOST} x {MOST} {tiles}.")
    elif any(max(order.clusters_m, order.clusters_n) > MOST for order in orders):
        sheet.words(f"Drawn are the first {MOST} of each extent.")
    if not waves.grouped and waves.units != first.count:
        sheet.words(
            "Drawn are the units of the first matrix, and of the first slice of its K; the others follow alike."
        )


def _rasters(sheet: Sheet, waves: Waves, orders: Sequence[Raster], count: int) -> int:
    """Draws as many as there is room for, of so many tiles in all, and returns how many."""
    columns = min(max(order.clusters_n for order in orders), MOST)
    wide = max(10.0, min(58.0, (WIDTH - 2 * LEFT - 60) / columns))
    high = 22.0 if wide >= 30 else 12.0
    fits = len(str(count)) * CHARACTER + 4 <= wide
    before = lines = 0
    for group, (matrix, order) in enumerate(zip(waves.matrices, orders, strict=True)):
        rows = min(order.clusters_m, MOST)
        if group and lines + rows > MOST:
            return group
        if waves.grouped:
            sheet.words(f"group {group}: {matrix.m:,} x {matrix.n:,}, K {matrix.k:,}", LEFT + 50)
        for row, column in itertools.product(range(rows), range(min(order.clusters_n, MOST))):
            number = before + order.index(row, column)
            at = LEFT + 50 + column * wide, sheet.bottom + row * high
            shade = number // waves.slots % SHADES
            sheet.box(*at, wide - 1, high - 1, shade, str(number) if fits else "", data_i=number)
        sheet.bottom += rows * high + 6
        before, lines = before + order.count, lines + max(1, rows)
    return len(orders)
