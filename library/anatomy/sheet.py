"""A page of panels: headings, paragraphs and figures from top to bottom, which SVG and HTML lay out differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gemmill.library.anatomy.anatomy import Anatomy, anatomy_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.drawing.cells import Grid, Picture, cell_width, outer_size
from gemmill.library.drawing.svg import CELL, CHARACTER, element, label, table
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.launch import LaunchSpec
from gemmill.library.occupancy import Occupancy

MOST_WIDE = 1140
"""Most width of a figure in pixels."""


@dataclass(frozen=True)
class Kernel:
    """The kernel that panels draw."""

    name: str
    plan: KernelPlan
    launch: LaunchSpec
    occupancy: Occupancy

    @property
    def config(self) -> GemmConfig:
        """The config of the kernel."""
        return self.plan.config

    @property
    def anatomy(self) -> Anatomy[KernelPlan]:
        """The parts that panels draw."""
        return anatomy_of(self.plan)


@dataclass
class Figure:
    """A drawing as large as its elements, which have their places once the figure has one on a page."""

    width: float = 0
    height: float = 0
    _elements: list[Callable[[float, float], str]] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, class_: str = "") -> None:
        """Draw a text with its baseline at y; x is its left end, its middle (class ``c``) or its right end (``r``)."""
        self._reach(x + len(text) * CHARACTER * {"c": 0.5, "r": 0.0}.get(class_, 1.0), y + 4)
        self._elements.append(lambda left, top: label(left + x, top + y, text, class_))

    def box(self, x: float, y: float, width: float, height: float, shade: int, text: str = "", **more: object) -> None:
        """Draw a rectangle with a centred text."""
        self._reach(x + width, y + height)
        size = {"width": float(width), "height": float(height)}
        self._elements.append(
            lambda left, top: element("rect", x=float(left + x), y=float(top + y), **size, class_=f"b s{shade}", **more)
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4, text, "c")

    def placed(self, left: float, top: float) -> list[str]:
        """The elements of the figure at a place of a page."""
        return [draw(left, top) for draw in self._elements]

    def _reach(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    @classmethod
    def of_table(cls, grid: Grid) -> Figure:
        """A table."""
        cell = cell_width(Picture("", (grid,)), CHARACTER, CELL)
        width, height = outer_size(grid, cell, CHARACTER, CELL)
        margin = (len(str(grid.rows - 1)) + 1.5) * CHARACTER
        return cls(width, height, [lambda left, top: table(grid, left + margin, top + 2.4 * CELL, cell)])


class Heading(NamedTuple):
    """The title of a panel."""

    text: str


class Words(NamedTuple):
    """A paragraph."""

    text: str


class Figures(NamedTuple):
    """Figures side by side, in as many rows as necessary."""

    figures: tuple[Figure, ...]
    shrinks: bool = False
    """Whether a narrow page shrinks the figures; otherwise the reader scrolls them."""


class Slider(NamedTuple):
    """A control that steps through the tiles of the figures below it. Pages without scripts omit it."""

    unit: str
    """A name for several tiles."""
    tiles: int
    slots: int
    """Tiles of a wave."""
    waves: int


@dataclass
class Sheet:
    """A page under construction."""

    blocks: list[Heading | Words | Figures | Slider] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Begin a panel."""
        self.blocks.append(Heading(text))

    def words(self, text: str) -> None:
        """Add a paragraph."""
        self.blocks.append(Words(text))

    def figures(self, *figures: Figure, shrinks: bool = False) -> None:
        """Add figures side by side, if there are any."""
        if figures:
            self.blocks.append(Figures(figures, shrinks))

    def slider(self, unit: str, tiles: int, slots: int, waves: int) -> None:
        """Add a control of the figures below."""
        self.blocks.append(Slider(unit, tiles, slots, waves))

    def tables(self, *grids: Grid) -> None:
        """Add tables side by side."""
        self.figures(*map(Figure.of_table, grids))
