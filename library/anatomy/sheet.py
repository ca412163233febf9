"""A page on which the panels of a kernel are drawn from top to bottom."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import wrap

from gemmill.library.anatomy.anatomy import Anatomy, anatomy_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.drawing.cells import Grid, Picture, cell_width, outer_size
from gemmill.library.drawing.svg import CELL, CHARACTER, element, label, table
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.launch import LaunchSpec

WIDTH = 1180
"""Width of a page in pixels."""
LEFT = 20
"""Left margin of panels."""
LINE = 18
"""Distance between lines of text."""


@dataclass(frozen=True)
class Kernel:
    """The kernel that panels draw."""

    name: str
    plan: KernelPlan
    launch: LaunchSpec

    @property
    def config(self) -> GemmConfig:
        """The config of the kernel."""
        return self.plan.config

    @property
    def anatomy(self) -> Anatomy[KernelPlan]:
        """The parts that panels draw."""
        return anatomy_of(self.plan)


@dataclass
class Sheet:
    """A page under construction; the drawing reaches down to ``bottom``."""

    parts: list[str] = field(default_factory=list)
    bottom: float = 12

    def heading(self, text: str) -> None:
        """Draw the title of a panel."""
        self.bottom += 30
        self.text(LEFT, self.bottom, text, "h")
        self.bottom += 10

    def words(self, text: str, left: float = LEFT, width: float = WIDTH - 2 * LEFT) -> None:
        """Draw a paragraph."""
        for line in wrap(text, int(width / CHARACTER), break_long_words=True):
            self.bottom += LINE
            self.text(left, self.bottom, line)
        self.bottom += 4

    def text(self, x: float, y: float, text: str, class_: str = "") -> None:
        """Draw a line of text with its baseline at y."""
        self.parts.append(label(x, y, text, class_))

    def box(self, x: float, y: float, width: float, height: float, shade: int, text: str = "", **more: object) -> None:
        """Draw a rectangle with a centred text."""
        self.parts.append(
            element(
                "rect", x=float(x), y=float(y), width=float(width), height=float(height), class_=f"b s{shade}", **more
            )
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4, text, "c")

    def tables(self, *grids: Grid) -> None:
        """Draw tables side by side, in as many rows as necessary."""
        left, top, below = float(LEFT), self.bottom + 12, self.bottom
        for grid in grids:
            width = cell_width(Picture("", (grid,)), CHARACTER, CELL)
            across, down = outer_size(grid, width, CHARACTER, CELL)
            if left > LEFT and left + across > WIDTH - LEFT:
                left, top = float(LEFT), below + 12
            margin = (len(str(grid.rows - 1)) + 1.5) * CHARACTER
            self.parts.append(table(grid, left + margin, top + 2.4 * CELL, width))
            left += across + 28
            below = max(below, top + down)
        self.bottom = below
