"""The product of low-rank adapters by Triton kernels, with the fastest of several tiles.

It works as vLLM's: tokens are sorted once for all layers, a first kernel multiplies them by the first factors with
slices of K, and a second adds the product with the other factors to the results of the layer.
"""

from __future__ import annotations

import importlib
import statistics
from itertools import product
from typing import Any, NamedTuple

from gemmill.profiler.measure.graph_timing import TUNING_ROUNDS, capture, time_rounds
from gemmill.profiler.measure.operands import torch


class Tile(NamedTuple):
    """Tiles of both kernels."""

    m: int
    n: int
    k: int
    slices: int


TILES = tuple(Tile(m, n, *of_k) for m, n, of_k in product((16, 64), (64, 256), ((256, 8), (128, 16), (64, 1))))
"""The candidates."""


class TritonAdapters:
    """Products with one choice of tiles, ``out = y + scale * (x @ a.T) @ b.T``. Every token has an adapter."""

    def __init__(self, x: Any, a: Any, b: Any, ids: Any, y: Any, scale: float, tile: Tile) -> None:
        self._x, self._a, self._b, self._y, self._scale, self._tile = x, a, b, y, scale, tile
        counts = torch().bincount(ids, minlength=len(a))
        self._order = ids.argsort(stable=True).int()
        self._begins, self._counts = (counts.cumsum(0) - counts).int(), counts.int()
        self._sums = torch().zeros(len(x), a.shape[1], device=x.device)
        self._tiles = -(-int(counts.max()) // tile.m)
        self.out = torch().empty_like(y)

    def __call__(self, _: int = 0) -> None:
        """Launch both kernels."""
        kernels: Any = importlib.import_module("gemmill.profiler.baselines.triton_adapters_kernels")
        (adapters, rank, k), n, tile = self._a.shape, self._b.shape[1], self._tile
        groups, width = (self._order, self._begins, self._counts), max(16, rank)
        if tile.slices > 1:
            self._sums.zero_()
        kernels.shrink[(tile.slices, self._tiles, adapters)](
            self._x, self._a, self._sums, *groups, k, rank, tile.slices, tile.m, width, tile.k
        )
        kernels.expand[(-(-n // tile.n), self._tiles, adapters)](
            self._sums, self._b, self._y, self.out, *groups, n, self._scale, rank, tile.m, tile.n, width
        )


def tuned(x: Any, a: Any, b: Any, ids: Any, y: Any, scale: float, stream: Any) -> TritonAdapters:
    """The products with the fastest tiles."""
    made = {tile: TritonAdapters(x, a, b, ids, y, scale, tile) for tile in TILES}
    graphs = {tile: capture(one, 1, 1, stream) for tile, one in made.items()}
    samples = time_rounds(graphs, 1, TUNING_ROUNDS)
    return made[min(samples, key=lambda tile: statistics.median(samples[tile]))]
