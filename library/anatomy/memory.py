"""What lies where in a CTA's shared memory, and in which banks."""

from __future__ import annotations

from dataclasses import dataclass

from gemmill.library.config.fields import Fields
from gemmill.library.drawing.grid import SHADES, Grid
from gemmill.library.families import mma
from gemmill.library.families.wgmma import ring, shared_memory, subtiles, warpgroups
from gemmill.library.launch import LaunchSpec
from gemmill.library.layouts.layout import Swizzle
from gemmill.library.legality.quantities import element_bits, integer

CHUNK = 16
"""Bytes that a swizzle moves as one: four banks."""
LINE = 128
"""Bytes of all banks."""


@dataclass(frozen=True)
class Region:
    """A part of shared memory."""

    name: str
    count: int
    """Parts of it that are alike."""
    size: int
    """Bytes of one."""

    @property
    def size_of_all(self) -> int:
        """Bytes."""
        return self.count * self.size


def regions(family: str, fields: Fields, launch: LaunchSpec, stages: tuple[int, int]) -> list[Region]:
    """The parts of shared memory, in their order; together they are what the launch asks for.

    ``stages``: bytes of a stage of A and of B.
    """
    depth = integer(fields, "stages")
    operands = [Region(f"{operand} stages", depth, size) for operand, size in zip("AB", stages, strict=True)]
    if family == "gemv":
        return [Region("sums of warps", 1, launch.shared_bytes)]
    if family != "wgmma":
        return operands
    writers = warpgroups.storing_warpgroups(fields)
    found = [Region("D subtiles", writers * shared_memory.d_buffers(fields), _subtile(fields, stored=True))]
    if subtiles.c_buffers(fields):
        found.append(Region("C subtiles", writers * subtiles.c_buffers(fields), _subtile(fields, stored=False)))
    found += operands
    if ring.scale_bytes(fields):
        found.append(Region("scales of stages", depth, ring.scale_bytes(fields)))
    if sums := ring.sums_bytes(fields):
        found.append(Region("sums of others, turns", 1, sums))
    return [*found, Region("mbarriers", 1, launch.shared_bytes - sum(region.size_of_all for region in found))]


def _subtile(fields: Fields, stored: bool) -> int:
    return subtiles.subtile_bytes(fields, (subtiles.stored if stored else subtiles.loaded)(fields))


def span(family: str, fields: Fields, operand: str) -> int:
    """Bytes of the rows in which a stage of A or B is swizzled; 16 where it is not."""
    if family == "wgmma":
        return ring.operand_swizzle(fields, operand)
    if family != "mma" or mma.is_shifted(fields, operand):
        return CHUNK
    extent = ("tile.m" if operand == "a" else "tile.n") if fields[f"{operand}.major"] == "mn" else "tile.k"
    return ring.swizzle_bytes(integer(fields, extent) * element_bits(fields, operand) // 8)


def banks(title: str, span_bytes: int) -> Grid:
    """Eight lines of 128 bytes: which row and chunk of 16 bytes of a panel lies in which banks. Rows are a span wide;
    the place of a byte is that of CuTe's ``Sw<log2(span / 16), 4, 3>``."""
    swizzle = Swizzle((span_bytes // CHUNK).bit_length() - 1, 4, 3)
    cells, shades = [], []
    for line in range(8):
        found = [divmod(swizzle(line * LINE + place), span_bytes) for place in range(0, LINE, CHUNK)]
        cells.append(tuple(f"r{row} c{within // CHUNK}" for row, within in found))
        shades.append(tuple(within // CHUNK % SHADES for _, within in found))
    return Grid(title, tuple(cells), tuple(shades))
