"""The page that draws a kernel, as SVG and as HTML."""

from __future__ import annotations

from html import escape
from textwrap import wrap

from gemmill.library.anatomy import panels
from gemmill.library.anatomy.raster import Waves, draw_raster
from gemmill.library.anatomy.sheet import MOST_WIDE, Figure, Figures, Heading, Kernel, Sheet, Slider, Words
from gemmill.library.drawing.svg import CHARACTER, document, element, label, style

_LEFT = 20
"""Left and right margin of the SVG in pixels."""
_LINE = 18
"""Distance between lines of text."""
_GAP = 28
"""Distance between figures side by side."""
_TITLE = "How this kernel works"
_PAGE_STYLE = (
    f"{style('html')}body{{margin:0 auto;max-width:{MOST_WIDE}px;padding:0 16px 24px;color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}h1{font-size:22px}h2{font-size:17px;margin:28px 0 8px}"
    "p{margin:8px 0}.row{display:flex;flex-wrap:wrap;gap:12px 28px;margin:12px 0}"
    ".row div{max-width:100%;overflow-x:auto}svg{display:block}.shrinks svg{max-width:100%;height:auto}"
    "#control{position:sticky;top:0;margin:0;padding:8px 0;background:var(--page)}"
    "#control label,#control input,#control output{display:block}#unit{width:min(40em,100%);margin:4px 0}"
    "@media(max-width:640px){.shrinks .c{display:none}}"
)
"""On narrow pages, the numbers in shrunk figures would be too small to read."""
SCRIPT = """
const unit = document.getElementById("unit"), said = document.getElementById("said");
const cells = [...document.querySelectorAll("[data-i]")];
function show() {
  const upTo = Number(unit.value), wave = Math.ceil(upTo / unit.dataset.slots);
  for (const cell of cells) cell.style.opacity = Number(cell.dataset.i) < upTo ? "1" : "0.15";
  said.textContent = `${upTo} of ${unit.max}, wave ${wave} of ${unit.dataset.waves}`;
}
document.getElementById("control").hidden = false;
unit.addEventListener("input", show);
show();
"""
"""The script of a slider."""


def as_svg(kernel: Kernel, waves: Waves | None) -> str:
    """The page as SVG. Without a problem (``waves`` is None), the page has no raster."""
    parts: list[str] = [label(_LEFT, 32, _TITLE, "h")]
    bottom = _lines(parts, 32, kernel.name)
    for block in _sheet(kernel, waves).blocks:
        match block:
            case Heading(text):
                parts.append(label(_LEFT, bottom + 30, text, "h"))
                bottom += 40
            case Words(text):
                bottom = _lines(parts, bottom, text)
            case Figures(figures):
                bottom = _row(parts, bottom + 12, figures)
    panel_names = f"Tile, cluster, shared memory, ownership, epilogue, roles{', raster' if waves else ''} and K"
    description = f"{panel_names} of {kernel.name}"
    return document(MOST_WIDE + 2 * _LEFT, bottom + 20, kernel.name, description, *parts)


def _lines(parts: list[str], bottom: float, text: str) -> float:
    """Draw a paragraph, and return where it ends."""
    for line in wrap(text, int(MOST_WIDE / CHARACTER), break_long_words=True):
        bottom += _LINE
        parts.append(label(_LEFT, bottom, line))
    return bottom + 4


def _row(parts: list[str], top: float, figures: tuple[Figure, ...]) -> float:
    """Draw figures side by side, in as many rows as necessary, and return where they end."""
    left, bottom = float(_LEFT), top
    for figure in figures:
        if left > _LEFT and left + figure.width > _LEFT + MOST_WIDE:
            left, top = float(_LEFT), bottom + 12
        parts += figure.placed(left, top)
        left += figure.width + _GAP
        bottom = max(bottom, top + figure.height)
    return bottom + 4


def as_html(kernel: Kernel, waves: Waves | None) -> str:
    """The page as HTML, for any width. With a problem and scripts, a slider shows the raster up to a tile."""
    blocks = _sheet(kernel, waves).blocks
    has_slider = any(isinstance(block, Slider) for block in blocks)
    return "\n".join(
        (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{kernel.name}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_PAGE_STYLE}</style></head><body><main>",
            f"<section><h1>{_TITLE}</h1><p>{kernel.name}</p>",
            *map(_html, blocks),
            f"</section></main>{f'<script>{SCRIPT}</script>' if has_slider else ''}</body></html>\n",
        )
    )


def _html(block: Heading | Words | Figures | Slider) -> str:
    match block:
        case Heading(text):
            return f"</section><section><h2>{escape(text)}</h2>"
        case Words(text):
            return f"<p>{escape(text)}</p>"
        case Figures(figures, shrinks):
            drawn = "".join(f"<div>{_svg(figure)}</div>" for figure in figures)
            return f'<div class="row{" shrinks" if shrinks else ""}">{drawn}</div>'
        case Slider(unit, tiles, slots, waves):
            return (
                f'<div id="control" hidden><label for="unit">{unit[0].upper()}{unit[1:]} that have started</label>'
                f'<input id="unit" type="range" min="1" max="{tiles}" value="{tiles}" data-slots="{slots}" '
                f'data-waves="{waves}" aria-describedby="said">'
                '<output id="said" for="unit" aria-live="polite"></output></div>'
            )


def _svg(figure: Figure) -> str:
    wide, high = figure.width + 2, figure.height + 2
    return element("svg", *figure.placed(1, 1), width=wide, height=high, viewBox=f"0 0 {wide:.1f} {high:.1f}")


def _sheet(kernel: Kernel, waves: Waves | None) -> Sheet:
    """The panels of a page."""
    sheet = Sheet()
    sheet.words("Boxes are to scale only where the text says so.")
    for panel in (panels.tile, panels.shared, panels.terms, panels.holders, panels.epilogue, panels.roles):
        panel(sheet, kernel)
    if waves is not None:
        draw_raster(sheet, kernel, waves)
    panels.decomposition(sheet, kernel, waves)
    return sheet
