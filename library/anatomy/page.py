"""A kernel's anatomy on a page."""

from __future__ import annotations

from gemmill.library.anatomy import holders, panels, problem
from gemmill.library.anatomy.raster import Waves
from gemmill.library.anatomy.sheet import LEFT, WIDTH, Kernel, Sheet
from gemmill.library.drawing.svg import document


def as_svg(kernel: Kernel, waves: Waves | None) -> str:
    """The page as SVG; without a problem, without the raster."""
    sheet = Sheet()
    sheet.bottom += 20
    sheet.text(LEFT, sheet.bottom, "How this kernel works", "h")
    sheet.words(kernel.name)
    for panel in (panels.tile, panels.shared, holders.holders, panels.epilogue, panels.roles):
        panel(sheet, kernel)
    if waves is not None:
        problem.raster(sheet, kernel, waves)
    problem.decomposition(sheet, kernel, waves)
    says = (
        f"Tile, cluster, shared memory, ownership, epilogue, roles{', raster' if waves else ''} and K of {kernel.name}"
    )
    return document(WIDTH, sheet.bottom + 20, kernel.name, says, *sheet.parts)


def as_html(kernel: Kernel, waves: Waves | None) -> str:
    """The page as HTML, whose slider walks through the raster."""
    if waves is None:
        return problem.as_html(kernel.name, as_svg(kernel, None))
    return problem.as_html(kernel.name, as_svg(kernel, waves), waves.tiles(kernel.config), waves.slots)
