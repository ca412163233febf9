"""Quick selection, for problems that are launched a few times only: a decision tree names a kernel after a dozen
comparisons, where the model takes half a millisecond. `gemmill train --quick` trains the trees on what the model says,
and tells how much slower than its choice theirs are."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gemmill.runtime.select.measured import FORMATS
from gemmill.runtime.select.models import content_of, path_of, sound

VERSION = 1
"""Of the files."""
LARGEST_EXTENT = 1 << 18
"""Largest extent that trees were trained for."""
EXTENTS = ("M", "N", "K", "MN", "MK", "NK", "MNK", "M/N")
"""What trees ask for of a problem: extents, products and a quotient."""
TILES = (
    *((128, 256), (256, 128), (128, 128), (128, 192), (192, 128), (256, 192), (64, 256), (256, 64), (64, 128)),
    *((128, 64), (64, 64), (128, 160), (160, 128), (128, 224), (224, 128), (64, 32), (64, 16)),
)
"""Of these besides how many output tiles each wave has."""
FIGURES = (*EXTENTS, *(f"{tile_m}x{tile_n}" for tile_m, tile_n in TILES))
"""Names of what trees ask for."""


class Tree(NamedTuple):
    """A decision tree for problems of some formats. Nodes are in the order of a walk that goes left first."""

    kernels: Sequence[tuple[str, bool]]
    """Names, and whether they run the transposed problem."""
    figure: array[int]
    """What a node compares: an index into :data:`FIGURES`; -1 for a leaf. Arrays, as a walk waits for memory."""
    threshold: array[float]
    """With what: beyond it the way is right."""
    target: array[int]
    """The node to the right; of a leaf the index of its kernel."""

    def kernel(self, m: int, n: int, k: int, sms: int) -> int:
        """The index of the kernel for extents of at least 1, on a GPU of so many SMs."""
        figure, threshold, target = self.figure, self.threshold, self.target
        figures: list[float | None] = [*extents_of(m, n, k), *_UNKNOWN]
        node = 0
        while (asked := figure[node]) >= 0:
            value = figures[asked]
            if value is None:
                value = figures[asked] = tiles_a_wave(m, n, asked - len(EXTENTS), sms)
            node = target[node] if value > threshold[node] else node + 1
        return target[node]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Tree:
        """The tree of a table in a file, whose nodes are pairs of a figure and a threshold, and leaves kernels."""
        index = {name: i for i, name in enumerate(FIGURES)}
        figure, threshold, target = array("b"), array("d"), array("i")
        waiting: list[int] = []
        for at, node in enumerate(content["nodes"]):
            is_leaf = isinstance(node, int)
            figure.append(-1 if is_leaf else index[node[0]])
            threshold.append(0.0 if is_leaf else node[1])
            target.append(node if is_leaf else 0)
            if not is_leaf:
                waiting.append(at)
            elif waiting:
                target[waiting.pop()] = at + 1
        kernels = [(name, swap_ab) for name, swap_ab in content["kernels"]]
        leaves = [to for asked, to in zip(figure, target, strict=True) if asked < 0]
        if waiting or not leaves or not 0 <= min(leaves) <= max(leaves) < len(kernels):
            raise ValueError("a walk through its nodes ends nowhere")
        return cls(kernels, figure, threshold, target)


_UNKNOWN = (None,) * len(TILES)


def extents_of(m: int, n: int, k: int) -> tuple[float, ...]:
    """The figures of :data:`EXTENTS`."""
    return m, n, k, m * n, m * k, n * k, m * n * k, m / n


def tiles_a_wave(m: int, n: int, tile: int, sms: int) -> float:
    """Output tiles of :data:`TILES`, by index, that each wave has on average."""
    tile_m, tile_n = TILES[tile]
    tiles = -(-m // tile_m) * -(-n // tile_n)
    return tiles / -(-tiles // sms)


@cache
def trees_of(gpu: str, folder: Path | None = None) -> Mapping[tuple[Any, ...], Mapping[str, Any]]:
    """What :meth:`Tree.of` reads, for a GPU by the name of its row in library/arch.py, in a folder of models, by
    default of those that ship, and by all of a problem but its extents, in the order of
    :data:`~gemmill.runtime.select.measured.FORMATS`; nothing where no trees were trained.

    Raises:
        RecordError: the file is damaged or of another version.
    """
    found = {}
    content = content_of(gpu, folder, "quick", VERSION) or {"tables": []}
    with sound(path_of(gpu, "quick", folder)):
        for table in content["tables"]:
            for a, b, d in table["types"]:
                formats = table["formats"] | {"a_dtype": a, "b_dtype": b, "d_dtype": d}
                found[tuple(formats[field] for field in FORMATS)] = table
    return found
