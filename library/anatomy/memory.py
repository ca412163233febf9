"""What lies where in a CTA's shared memory, and in which banks."""

from __future__ import annotations

from dataclasses import dataclass

from gemmill.library.drawing.grid import SHADES, Grid
from gemmill.library.layouts.layout import Swizzle

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
