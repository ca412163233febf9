"""The values of layout expressions, and checks of function arguments."""

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
    """Which thread holds which element of a tile: the inverse of a layout (thread, value) -> coordinate.

    Raises:
        LayoutError: the layout does not have two modes, or exceeds the tile.
    """

    layout: Layout
    shape: tuple[int, int]
    """Rows and columns of the tile. A coordinate is row + column * rows."""

    def __post_init__(self) -> None:
        if self.layout.rank != 2:
            raise LayoutError(f"{self.layout} has {self.layout.rank} modes; a TV layout must have two: (thread, value)")
        if self.layout.cosize > self.shape[0] * self.shape[1]:
            raise LayoutError(
                f"{self.layout} reaches coordinate {self.layout.cosize - 1}, but a tile of {self.shape[0]}x"
                f"{self.shape[1]} ends at {self.shape[0] * self.shape[1] - 1}; pass a larger tile"
            )

    def __str__(self) -> str:
        return f"tv({self.layout}, {tuples.text(self.shape)})"


Value: TypeAlias = (
    "int | Layout | Composed | Swizzle | MmaAtom | CopyAtom | TiledMma | ThreadValues | tuple[Value, ...] | None"
)

Kind: TypeAlias = Literal[
    "integer", "integers", "coordinate", "layout", "swizzled", "outer", "tiler", "atom", "mma", "copy", "any"
]
"""The kind of a parameter. ``swizzled``: a layout with or without a swizzle; ``outer``: that or only a swizzle."""

_KINDS_IN_WORDS: dict[Kind, str] = {
    "integer": "an integer",
    "integers": "an integer or a tuple of integers such as (4,(2,2))",
    "coordinate": "a coordinate: an integer or a tuple of integers",
    "layout": "a layout such as (4,2):(2,1)",
    "swizzled": "a layout such as (4,2):(2,1)",
    "outer": "a layout or a swizzle",
    "tiler": "a layout, an integer, '_', or a tuple of these",
    "atom": "an MMA atom such as SM80_16x8x16_F32F16F16F32_TN",
    "mma": "an MMA atom or make_tiled_mma(...)",
    "copy": "a copy atom such as SM75_U32x4_LDSM_N",
    "any": "a layout, a tuple or an integer",
}


def is_ints(value: object) -> bool:
    """Whether a value is an integer or a nested tuple of integers."""
    return isinstance(value, int) or (isinstance(value, tuple) and all(map(is_ints, value)))


def _is_tiler(value: object) -> bool:
    return value is None or isinstance(value, int | Layout) or (isinstance(value, tuple) and all(map(_is_tiler, value)))


def text(value: Value) -> str:
    """The text of a value in the language."""
    if value is None:
        return "_"
    return f"({','.join(map(text, value))})" if isinstance(value, tuple) else str(value)


def checked(value: Value, kind: Kind, parameter: str) -> Any:
    """The value itself, if it has the kind of a parameter.

    Raises:
        LayoutError: it has another kind.
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
        hint = "; this function does not support a swizzle"
    elif kind == "atom" and isinstance(value, TiledMma):
        hint = ", did you mean get_layoutA_TV, get_layoutB_TV or get_layoutC_TV?"
    raise LayoutError(f"{parameter} is {text(value)}; it must be {_KINDS_IN_WORDS[kind]}{hint}")


def as_shape(value: IntTuple) -> IntTuple:
    """The value itself, if it is a shape: all extents are at least 1.

    Raises:
        LayoutError: an extent is less than 1.
    """
    if min(tuples.flat(value), default=1) < 1:
        raise LayoutError(f"the shape {tuples.text(value)} has an extent below 1; extents must be at least 1")
    return value
