"""A layer of a mixture of experts by Triton kernels, with the fastest of several tiles.

The layer works as vLLM's fused one: slots are sorted and padded to tiles, one kernel multiplies the gathered rows of
tokens, one applies the gate, the kernel of the first GEMM multiplies again and weights the rows, and one adds those of
each token. Both GEMMs have the same tile. Of e4m3, the kernel that applies the gate also quantises.

Triton, which comes with PyTorch, is typed as ``Any`` and imported only where needed.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from gemmill.profiler.baselines.experts import BLOCK, Experts, Tokens
from gemmill.profiler.measure.graph_timing import TUNING_ROUNDS, capture, time_rounds
from gemmill.profiler.measure.operands import torch


class Tile(NamedTuple):
    """A tile of both GEMMs, with the options of its kernel."""

    m: int
    n: int
    k: int
    swizzle: int
    """Rows of tiles that are processed together."""
    warps: int
    stages: int


TILES = (
    *(Tile(16, 64, 128, 1, 4, 5), Tile(16, 128, 64, 1, 4, 5), Tile(16, 128, 128, 1, 4, 4)),
    *(Tile(32, 64, 128, 1, 4, 5), Tile(32, 128, 64, 1, 4, 5), Tile(32, 128, 128, 1, 4, 4)),
    *(Tile(64, 64, 128, 1, 4, 4), Tile(64, 128, 64, 1, 4, 4), Tile(64, 128, 64, 16, 4, 4), Tile(64, 256, 64, 1, 8, 4)),
    *(Tile(128, 128, 64, 16, 4, 4), Tile(128, 128, 64, 16, 8, 4), Tile(128, 256, 64, 1, 8, 4)),
    *(Tile(128, 256, 64, 16, 8, 3), Tile(128, 256, 64, 16, 8, 4), Tile(256, 128, 64, 16, 8, 4)),
)
"""The candidates."""
SCALED_TILES = (
    *(Tile(16, 64, 128, 1, 4, 4), Tile(16, 64, 128, 1, 4, 5), Tile(16, 128, 128, 1, 4, 3), Tile(16, 128, 128, 1, 4, 5)),
    *(Tile(16, 128, 128, 16, 4, 3), Tile(32, 128, 128, 1, 4, 3), Tile(32, 128, 128, 16, 4, 4)),
    *(Tile(64, 128, 128, 1, 4, 4), Tile(64, 128, 128, 16, 4, 4), Tile(64, 128, 128, 16, 4, 3)),
    *(Tile(64, 256, 128, 16, 8, 3), Tile(64, 256, 128, 16, 8, 4), Tile(128, 64, 128, 16, 4, 3)),
    *(Tile(128, 128, 128, 16, 8, 3), Tile(128, 128, 128, 16, 8, 4), Tile(128, 128, 128, 16, 4, 3)),
)
"""Those of e4m3, among them all that are frequent in vLLM's tables for Hopper; K is that of a scale."""
NEAR = 8
"""Candidates have at least the mean rows of an expert divided by this, and at most as many times the mean."""
STEP = 4096
"""Slots that a program of the sort reads at a time."""
GATE_ROWS, GATE_COLUMNS, ADDED_COLUMNS = 4, 256, 1024
"""Elements of a program of the gate, and of the sum of a token."""


def candidates(rows: float, tiles: Sequence[Tile] = TILES) -> list[Tile]:
    """The tiles for experts with a mean number of rows."""
    least = min(max(rows / NEAR, tiles[0].m), tiles[-1].m / 2)
    return [tile for tile in tiles if least <= tile.m <= max(rows * NEAR, 2 * least)]


class TritonExperts:
    """A layer with one tile. Calls share all memory except their outputs.

    Args:
        experts: the weights.
        tokens: the inputs of each call.
        outputs: their outputs, (tokens, H).
        tile: the tile of both GEMMs.
    """

    def __init__(self, experts: Experts, tokens: Sequence[Tokens], outputs: Sequence[Any], tile: Tile) -> None:
        self.tile = tile
        self._experts, self._tokens, self._outputs = experts, tokens, outputs
        count, hidden, inner = experts.down.shape
        total = tokens[0].ids.numel()
        self._tiles = min(total, (total + count * (tile.m - 1)) // tile.m)
        empty, device = torch().empty, experts.down.device
        self._counts, self._height = (empty(x, dtype=torch().int32, device=device) for x in (count, 1))
        self._sorted, self._tile_experts = (
            empty(x, dtype=torch().int32, device=device) for x in (self._tiles * tile.m, self._tiles)
        )
        wide = outputs[0].dtype
        self._z, self._y = (empty(total, x, dtype=wide, device=device) for x in (2 * inner, hidden))
        self._h = empty(total, inner, dtype=experts.down.dtype, device=device)
        self._scaled = experts.down_scale is not None
        self._h_scale = empty(total, inner // BLOCK, device=device) if self._scaled else None

    def __call__(self, index: int) -> None:
        """Launch the layer on the inputs of an index."""
        kernels, tokens = _kernels(), self._tokens[index]
        (count, hidden, inner), total, slots = self._experts.down.shape, tokens.ids.numel(), tokens.ids.shape[1]
        kernels.count[(count,)](tokens.ids, self._counts, total, STEP)
        width = 1 << (count - 1).bit_length()
        sort = self._counts, self._sorted, self._tile_experts, self._height, total, count, width, self.tile.m, STEP
        kernels.align[(count,)](tokens.ids, *sort)
        experts = self._experts
        self._multiply((tokens.x, experts.gate_up, self._z, tokens.x_scale, experts.gate_up_scale), tokens, slots)
        columns = BLOCK if self._scaled else GATE_COLUMNS
        grid = -(-total // GATE_ROWS), -(-inner // columns)
        kernels.activate[grid](self._z, self._h, self._h_scale, total, inner, GATE_ROWS, columns, self._scaled)
        self._multiply((self._h, experts.down, self._y, self._h_scale, experts.down_scale), tokens, 1)
        grid = total // slots, -(-hidden // ADDED_COLUMNS)
        kernels.add[grid](self._y, self._outputs[index], hidden, slots, ADDED_COLUMNS)

    def _multiply(self, operands: tuple[Any, ...], tokens: Tokens, slots: int) -> None:
        (total, n), k = operands[2].shape, operands[0].shape[1]
        grid = (self._tiles * -(-n // self.tile.n),)
        sorted_slots = self._sorted, self._tile_experts, self._height
        options = _options(self.tile, k, slots == 1) | {"SCALED": self._scaled}
        _kernels().multiply[grid](*operands, tokens.weights, *sorted_slots, n, k, total, slots, **options)


def tuned(experts: Experts, tokens: Sequence[Tokens], outputs: Sequence[Any], stream: Any) -> TritonExperts:
    """The layer with the fastest tile."""
    sets, rows = len(tokens), tokens[0].ids.numel() / len(tokens[0].ids.unique())
    tiles = candidates(rows, TILES if experts.down_scale is None else SCALED_TILES)
    layers = {tile: TritonExperts(experts, tokens, outputs, tile) for tile in tiles}
    graphs = {tile: capture(layer, sets, sets, stream) for tile, layer in layers.items()}
    samples = time_rounds(graphs, sets, TUNING_ROUNDS)
    return layers[min(samples, key=lambda tile: statistics.median(samples[tile]))]


def _kernels() -> Any:
    return importlib.import_module("gemmill.profiler.baselines.triton_experts_kernels")


def _options(tile: Tile, k: int, weighted: bool) -> dict[str, Any]:
    tiles = {"TILE_M": tile.m, "TILE_N": tile.n, "TILE_K": tile.k, "SWIZZLE": tile.swizzle}
    return {**tiles, "EVEN": k % tile.k == 0, "WEIGHTED": weighted, "num_warps": tile.warps, "num_stages": tile.stages}
