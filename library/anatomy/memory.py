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


def banks(title: str, span_bytes: int, element_bytes: int) -> Grid:
    """Eight lines of 128 bytes: which row and chunk of 16 bytes of a panel lies in which banks. Rows are a span wide;
    the place of a byte is that of CuTe's ``Sw<log2(span / 16), 4, 3>``, of elements of 8 bytes with the bits of the
    line in reverse (``swizzled_in_pairs``)."""
    bits = (span_bytes // CHUNK).bit_length() - 1
    swizzle = Swizzle(bits, 4, 3)
    cells, shades = [], []
    for line in range(8):
        turned = int(f"{line % 2**bits:0{bits}b}"[::-1], 2) if element_bytes == 8 else line
        found = [
            divmod(line * LINE + swizzle(turned * LINE + place) % LINE, span_bytes) for place in range(0, LINE, CHUNK)
        ]
        cells.append(tuple(f"r{row} c{within // CHUNK}" for row, within in found))
        shades.append(tuple(within // CHUNK % SHADES for _, within in found))
    return Grid(title, tuple(cells), tuple(shades))
