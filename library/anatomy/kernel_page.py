"""The page that draws a kernel, as SVG and as HTML."""

from __future__ import annotations

from html import escape

from gemmill.library.anatomy import panels
from gemmill.library.anatomy.raster import Waves, draw_raster
from gemmill.library.anatomy.sheet import LEFT, WIDTH, Kernel, Sheet
from gemmill.library.drawing.svg import document

SCRIPT = """
const unit = document.getElementById("unit"), said = document.getElementById("said");
const cells = [...document.querySelectorAll("[data-i]")];
function show() {
  const upTo = Number(unit.value);
  for (const cell of cells) cell.style.opacity = Number(cell.dataset.i) < upTo ? "1" : "0.15";
  said.textContent = ` ${upTo} of ${unit.max}, wave ${Math.ceil(upTo / unit.dataset.slots)}`;
}
document.getElementById("control").hidden = false;
unit.addEventListener("input", show);
show();
"""


def as_svg(kernel: Kernel, waves: Waves | None) -> str:
    """The page as SVG. Without a problem (``waves`` is None), the page has no raster."""
    sheet = Sheet()
    sheet.bottom += 20
    sheet.text(LEFT, sheet.bottom, "How this kernel works", "h")
    sheet.words(kernel.name)
    for panel in (panels.tile, panels.shared, panels.holders, panels.epilogue, panels.roles):
        panel(sheet, kernel)
    if waves is not None:
        draw_raster(sheet, kernel, waves)
    panels.decomposition(sheet, kernel, waves)
    description = (
        f"Tile, cluster, shared memory, ownership, epilogue, roles{', raster' if waves else ''} and K of {kernel.name}"
    )
    return document(WIDTH, sheet.bottom + 20, kernel.name, description, *sheet.parts)


def as_html(kernel: Kernel, waves: Waves | None) -> str:
    """The page as HTML. A slider shows the raster up to a tile; it needs scripts and a problem."""
    svg, tiles, slots = as_svg(kernel, waves), waves.tiles(kernel.config) if waves else 0, waves.slots if waves else 1
    control = (
        '<p id="control" hidden><label for="unit">Tiles that have started: </label>'
        f'<input id="unit" type="range" min="1" max="{tiles}" value="{tiles}" data-slots="{slots}" '
        'aria-describedby="said">'
        '<output id="said" for="unit" aria-live="polite"></output></p>'
    )
    script = f"<script>{SCRIPT}</script>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(kernel.name)}</title>'
        '<meta name="viewport" content="width=device-width"><style>:root{color-scheme:light dark}'
        "body{margin:0;font:14px system-ui,sans-serif}#control{position:sticky;top:0;margin:0;padding:8px 20px;"
        "background:Canvas;color:CanvasText}#unit{width:min(40em,60%);vertical-align:middle}main{overflow-x:auto}"
        f"</style></head><body>{control if tiles else ''}<main>\n{svg}</main>{script if tiles else ''}</body></html>\n"
    )
