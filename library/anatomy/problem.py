"""The panels of a page that need a problem: the raster with its waves, and how K is shared."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType

from gemmill.library.anatomy.raster import Raster, Waves
from gemmill.library.anatomy.sheet import LEFT, WIDTH, Kernel, Sheet
from gemmill.library.config.model import DecompositionName
from gemmill.library.drawing.grid import SHADES
from gemmill.library.drawing.svg import CHARACTER

MOST = 64
"""Rows and columns of cluster tiles that are drawn; what lies beyond is said."""


def raster(sheet: Sheet, kernel: Kernel, waves: Waves) -> None:
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
    """Draws as many as there is room for, of so many tiles in all, and says how many."""
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


def decomposition(sheet: Sheet, kernel: Kernel, waves: Waves | None) -> None:
    """Which CTA sums which part of K of a tile."""
    sheet.heading("K of a tile")
    shared, k = kernel.launch.k_decomposition, _k(waves)
    steps = -(-k // kernel.config.tile.k) if k else None
    said = f"{steps} steps of {kernel.config.tile.k}" if steps else f"steps of {kernel.config.tile.k}"
    splits = max(kernel.launch.cluster_k, shared.splits if shared else 1)
    name = kernel.config.scheduler.decomposition
    sheet.bottom += 8
    drawn = min(splits, 16)
    for part in range(drawn):
        wide = (WIDTH - 2 * LEFT) / drawn
        label = "all of K" if splits == 1 else f"slice {part}"
        sheet.box(LEFT + part * wide, sheet.bottom, wide - 3, 26, part % SHADES, label if wide > 70 else str(part))
    sheet.bottom += 30
    more = f" Drawn are {drawn} of {splits} slices." if drawn < splits else ""
    sheet.words(f"K goes in {said}; {DECOMPOSITIONS[name]}{more}")


def _k(waves: Waves | None) -> int | None:
    """The K of all matrices; None where they have none in common."""
    found = {matrix.k for matrix in waves.matrices} if waves else set()
    return found.pop() if len(found) == 1 else None


DECOMPOSITIONS: Mapping[DecompositionName, str] = MappingProxyType(
    {
        "tiles": "one CTA sums all of it.",
        "splitk": "slices, as many as a launch has, are units of work; a second kernel adds up partial sums.",
        "stream": "tiles of the last wave, where that is not full, are shared among clusters along K, and added up.",
        "cluster": "the CTAs of a cluster take a slice each, and send each other sums through shared memory.",
    }
)
"""What becomes of K, by decomposition."""


_SCRIPT = """
const unit = document.getElementById("unit"), said = document.getElementById("said");
const cells = [...document.querySelectorAll("[data-i]")];
function show() {
  const upTo = Number(unit.value);
  for (const cell of cells) cell.style.opacity = Number(cell.dataset.i) < upTo ? "1" : "0.15";
  said.textContent = ` ${upTo} of ${unit.max}, wave ${Math.ceil(upTo / SLOTS)}`;
}
document.getElementById("control").hidden = false;
unit.addEventListener("input", show);
show();
"""


def as_html(title: str, svg: str, tiles: int = 0, slots: int = 1) -> str:
    """A page around a picture, whose slider shows its raster, of so many tiles, up to one; without scripts, or a
    raster, there is none."""
    control = (
        '<p id="control" hidden><label for="unit">Tiles that have begun: </label>'
        f'<input id="unit" type="range" min="1" max="{tiles}" value="{tiles}" aria-describedby="said">'
        '<output id="said" for="unit" aria-live="polite"></output></p>'
    )
    script = f"<script>{_SCRIPT.replace('SLOTS', str(slots))}</script>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width"><style>:root{color-scheme:light dark}'
        "body{margin:0;font:14px system-ui,sans-serif}#control{position:sticky;top:0;margin:0;padding:8px 20px;"
        "background:Canvas;color:CanvasText}#unit{width:min(40em,60%);vertical-align:middle}main{overflow-x:auto}"
        f"</style></head><body>{control if tiles else ''}<main>\n{svg}</main>{script if tiles else ''}</body></html>\n"
    )
