"""The order of output tiles and their waves (work.cuh, triangle.cuh and groups.cuh in the headers of schedulers), and
their drawing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from gemmill.library.anatomy.sheet import MOST_WIDE, Figure, Kernel, Sheet
from gemmill.library.config.model import GemmConfig
from gemmill.library.drawing.cells import SHADES
from gemmill.library.drawing.svg import CHARACTER

MOST = 64
"""Most rows and columns of cluster tiles in a drawing. A line of text states what is omitted."""


@dataclass(frozen=True)
class Raster:
    """The cluster tiles of one matrix."""

    clusters_m: int
    clusters_n: int
    along_m: bool
    """Whether consecutive tiles of a group advance along M."""
    swizzle: int
    """Cluster tiles across the raster order that form one group."""
    triangle: tuple[int, int] | None = None
    """Extents of a cluster tile, if only those tiles are multiplied that meet the lower triangle."""

    @classmethod
    def of(cls, config: GemmConfig, m: int, n: int) -> Raster:
        """The raster over an M x N output of the kernel."""
        tile_m, tile_n = config.tile.m * config.cluster.m, config.tile.n * config.cluster.n
        scheduler = config.scheduler
        triangle = (tile_m, tile_n) if scheduler.symmetry == "symmetric" else None
        counts = -(-m // tile_m), -(-n // tile_n)
        return cls(*counts, scheduler.raster == "m", scheduler.swizzle_size, triangle)

    @property
    def count(self) -> int:
        """The number of cluster tiles."""
        return len(self._places) if self.triangle else self.clusters_m * self.clusters_n

    @cached_property
    def _places(self) -> dict[tuple[int, int], int]:
        """The index in the order of each cluster tile of a triangle, by its position along M and N."""
        return {place: index for index, place in enumerate(self._in_triangle())}

    def _in_triangle(self) -> Iterator[tuple[int, int]]:
        assert self.triangle
        down, across = self.triangle
        for first in range(0, self.clusters_n, self.swizzle):
            group = range(first, min(first + self.swizzle, self.clusters_n))
            for row in range(self.clusters_m):
                yield from ((row, column) for column in group if column * across < (row + 1) * down)

    def origin(self, index: int) -> tuple[int, int]:
        """The position along M and N of a cluster tile from its index in the order."""
        if self.triangle:
            return [*self._places][index]
        along_extent, across_extent = self.clusters_m, self.clusters_n
        if not self.along_m:
            along_extent, across_extent = across_extent, along_extent
        group, within = divmod(index, self.swizzle * along_extent)
        width = min(self.swizzle, across_extent - group * self.swizzle)
        along, across = within // width, group * self.swizzle + within % width
        return (along, across) if self.along_m else (across, along)

    def index(self, m: int, n: int) -> int | None:
        """The index in the order of a cluster tile; the inverse of :meth:`origin`. None for one that is not
        multiplied."""
        if self.triangle:
            return self._places.get((m, n))
        along, across = (m, n) if self.along_m else (n, m)
        along_extent, across_extent = self.clusters_m, self.clusters_n
        if not self.along_m:
            along_extent, across_extent = across_extent, along_extent
        group, within = divmod(across, self.swizzle)
        width = min(self.swizzle, across_extent - group * self.swizzle)
        return group * self.swizzle * along_extent + along * width + within


class Matrix(NamedTuple):
    """The extents of one matrix product of a launch: of a batch or of a group, after a possible transposition."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Waves:
    """How a problem fills a GPU."""

    problem: str
    """The problem as a line of text."""
    gpu: str
    matrices: Sequence[Matrix]
    """A single matrix for a batch of equal ones; one per group otherwise, in order."""
    slots: int
    """Clusters that the GPU runs at a time."""
    units: int
    """Units of work: the cluster tiles of all matrices times the clusters that share K of a tile."""
    slices: int = 1
    """Slices of K of the launch of a split-K kernel."""
    grouped: bool = False
    """Whether ``matrices`` are groups."""
    swapped: bool = False
    """Whether the kernel runs the transposed problem."""

    def sharing_sms(self, ctas: int) -> Waves:
        """The same if an SM holds some CTAs instead of one."""
        return replace(self, slots=self.slots * max(1, ctas))

    @property
    def waves(self) -> int:
        """The number of waves."""
        return -(-self.units // self.slots)

    @property
    def loss(self) -> float:
        """The idle fraction of all waves, from 0 to 1: slots of the last wave without work."""
        return 1 - self.units / (self.waves * self.slots) if self.units else 0.0

    def rasters(self, config: GemmConfig) -> list[Raster]:
        """The raster of each matrix, in the order in which the kernel processes them."""
        return [Raster.of(config, matrix.m, matrix.n) for matrix in self.matrices]

    def tiles(self, config: GemmConfig) -> int:
        """The number of cluster tiles of all matrices."""
        return sum(order.count for order in self.rasters(config))


def draw_raster(sheet: Sheet, kernel: Kernel, waves: Waves) -> None:
    """Draw the cluster tiles of a matrix, or of every group, with their order, coloured by wave."""
    sheet.heading(f"The raster over {waves.problem}")
    config = kernel.config
    orders, count = waves.rasters(config), waves.tiles(config)
    tiles, whole = ("cluster tiles", "clusters") if kernel.launch.cluster_ctas > 1 else ("tiles", "CTAs")
    size = f"{config.tile.m * config.cluster.m}x{config.tile.n * config.cluster.n}"
    first = orders[0]
    tiles_text = f"{first.clusters_m} x {first.clusters_n} {tiles} of {size}"
    if first.triangle:
        tiles_text += f", of which {count} meet the lower triangle; the others are mirrors of these"
    if waves.grouped:
        tiles_text = f"{len(orders)} groups, one after the other, of {count} {tiles} of {size}"
    transposed = ", of the transposed problem" if waves.swapped else ""
    sheet.words(
        f"{tiles_text}, along {'M' if first.along_m else 'N'} in strips of {first.swizzle}{transposed}. The "
        f"{waves.gpu} holds {waves.slots:,} {whole} at a time: {waves.units:,} units of work are {waves.waves:,} "
        f"wave{'s' * (waves.waves != 1)}. {waves.loss:.1%} of the slots are idle, all in the last wave. Colours show "
        f"waves, numbers show the order; N is to the right, M down. The picture is not to scale."
    )
    ctas = config.cluster.m * config.cluster.n
    if count:
        sheet.slider(f"{tiles} of {ctas} tiles each" if ctas > 1 else tiles, count, waves.slots, waves.waves)
    shown = _rasters(sheet, waves, orders, count)
    if waves.grouped and shown < len(orders):
        sheet.words(f"The picture shows {shown} of {len(orders)} groups, and up to {MOST} x {MOST} {tiles} of each.")
    elif any(max(order.clusters_m, order.clusters_n) > MOST for order in orders):
        sheet.words(f"The picture shows the first {MOST} of each extent.")
    if not waves.grouped and waves.units != first.count:
        sheet.words(
            "The picture shows the units of the first matrix and its first slice of K; the others follow likewise."
        )


def _rasters(sheet: Sheet, waves: Waves, orders: Sequence[Raster], count: int) -> int:
    """Draw as many rasters as fit, and return their number. ``count`` is the total number of tiles."""
    columns = min(max(order.clusters_n for order in orders), MOST)
    wide = max(10.0, min(58.0, (MOST_WIDE - 20) / columns))
    high = 22.0 if wide >= 30 else 12.0
    fits = len(str(count)) * CHARACTER + 4 <= wide
    first_tile = lines = 0
    for group, (matrix, order) in enumerate(zip(waves.matrices, orders, strict=True)):
        rows = min(order.clusters_m, MOST)
        if group and lines + rows > MOST:
            return group
        if waves.grouped:
            sheet.words(f"group {group}: {matrix.m:,} x {matrix.n:,}, K {matrix.k:,}")
        figure = Figure()
        for row, column in itertools.product(range(rows), range(min(order.clusters_n, MOST))):
            if (index := order.index(row, column)) is None:
                continue
            number = first_tile + index
            shade = number // waves.slots % SHADES
            text = str(number) if fits else ""
            figure.box(column * wide, row * high, wide - 1, high - 1, shade, text, data_i=number)
        if rows:
            sheet.figures(figure, shrinks=True)
        first_tile, lines = first_tile + order.count, lines + max(1, rows)
    return len(orders)
