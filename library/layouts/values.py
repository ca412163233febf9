"""What expressions of layouts are worth, and what functions take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import tuples
from gemmill.library.layouts.atoms import CopyAtom, MmaAtom
from gemmill.library.layouts.layout import Composed, Layout, Swizzle
from gemmill.library.layouts.tiled import TiledMma
from gemmill.library.layouts.tuples import IntTuple


@dataclass(frozen=True)
class ThreadValues:
    """Who holds what of a tile: the inverse of a layout (thread, value) -> coordinate.

    Raises:
        LayoutError: the layout has not two modes, or leaves the tile.
    """

    layout: Layout
    shape: tuple[int, int]
    """Rows and columns of the tile; a coordinate is row + column * rows."""

    def __post_init__(self) -> None:
        if self.layout.rank != 2:
            raise LayoutError(f"{self.layout} has {self.layout.rank} modes, and a TV layout two: (thread, value)")
        if self.layout.cosize > self.shape[0] * self.shape[1]:
            raise LayoutError(
                f"{self.layout} reaches coordinate {self.layout.cosize - 1}, and a tile of {self.shape[0]}x"
                f"{self.shape[1]} ends at {self.shape[0] * self.shape[1] - 1}: name a larger tile"
            )

    def __str__(self) -> str:
        return f"tv({self.layout}, {tuples.text(self.shape)})"


Value: TypeAlias = (
    "int | Layout | Composed | Swizzle | MmaAtom | CopyAtom | TiledMma | ThreadValues | tuple[Value, ...] | None"
)

Kind: TypeAlias = Literal[
    "integer", "integers", "coordinate", "layout", "swizzled", "outer", "tiler", "atom", "mma", "copy", "any"
]
"""What a parameter takes: ``swizzled`` is a layout with or without a swizzle, ``outer`` that or a swizzle alone."""

_KINDS_IN_WORDS: dict[Kind, str] = {
    "integer": "an integer",
    "integers": "an integer or a tuple of integers, as (4,(2,2))",
    "coordinate": "a coordinate: an integer or a tuple of integers",
    "layout": "a layout, as (4,2):(2,1)",
    "swizzled": "a layout, as (4,2):(2,1)",
    "outer": "a layout or a swizzle",
    "tiler": "a layout, an integer, '_', or a tuple of these",
    "atom": "an MMA atom, as SM80_16x8x16_F32F16F16F32_TN",
    "mma": "an MMA atom or make_tiled_mma(...)",
    "copy": "a copy atom, as SM75_U32x4_LDSM_N",
    "any": "a layout, a tuple or an integer",
}


def is_ints(value: object) -> bool:
    """Whether a value is an integer or a tuple of such."""
    return isinstance(value, int) or (isinstance(value, tuple) and all(map(is_ints, value)))


def _is_tiler(value: object) -> bool:
    return value is None or isinstance(value, int | Layout) or (isinstance(value, tuple) and all(map(_is_tiler, value)))


def text(value: Value) -> str:
    """A value as the language writes it."""
    if value is None:
        return "_"
    return f"({','.join(map(text, value))})" if isinstance(value, tuple) else str(value)


def checked(value: Value, kind: Kind, parameter: str) -> Any:
    """A value that a parameter takes.

    Raises:
        LayoutError: it takes none such.
    """
    fits = {
        "integer": isinstance(value, int),
        "integers": is_ints(value),
        "coordinate": is_ints(value),
        "layout": isinstance(value, Layout),
        "swizzled": isinstance(value, Layout | Composed),
        "outer": isinstance(value, Layout | Composed | Swizzle),
        "tiler": _is_tiler(value),
        "atom": isinstance(value, MmaAtom),
        "mma": isinstance(value, MmaAtom | TiledMma),
        "copy": isinstance(value, CopyAtom),
        "any": isinstance(value, Layout | Composed) or is_ints(value),
    }
    if fits[kind]:
        return value
    hint = ""
    if "layout" in _KINDS_IN_WORDS[kind] and is_ints(value):
        hint = f", did you mean make_layout({text(value)})?"
    elif kind == "layout" and isinstance(value, Composed):
        hint = ": this one has no result behind a swizzle"
    elif kind == "atom" and isinstance(value, TiledMma):
        hint = ", did you mean get_layoutC_TV and its like, which take tiled MMAs?"
    raise LayoutError(f"{parameter} is {_KINDS_IN_WORDS[kind]}, and {text(value)} is none{hint}")


def as_shape(value: IntTuple) -> IntTuple:
    """A tuple that is a shape: extents of 1 or more.

    Raises:
        LayoutError: it has an extent below.
    """
    if min(tuples.flat(value), default=1) < 1:
        raise LayoutError(f"{tuples.text(value)} is no shape: extents are 1 or more")
    return value
