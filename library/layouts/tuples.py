"""Nested tuples of integers (CuTe's ``IntTuple``): shapes, strides and coordinates of layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from gemmill.library.errors import LayoutError

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"


def text(value: IntTuple) -> str:
    """The text of a tuple as CuTe prints it, such as ``(4,(2,2))``."""
    return str(value) if isinstance(value, int) else f"({','.join(map(text, value))})"


def flat(value: IntTuple) -> tuple[int, ...]:
    """The integers of a tuple, in order."""
    return (value,) if isinstance(value, int) else tuple(leaf for mode in value for leaf in flat(mode))


def product(value: IntTuple) -> int:
    """The product of all integers: the size of a shape."""
    return math.prod(flat(value))


def rank(value: IntTuple) -> int:
    """The number of modes; 1 for an integer."""
    return 1 if isinstance(value, int) else len(value)


def depth(value: IntTuple) -> int:
    """The depth of nesting; 0 for an integer."""
    return 0 if isinstance(value, int) else 1 + max(map(depth, value), default=0)


def modes(value: IntTuple) -> tuple[IntTuple, ...]:
    """The top-level modes; an integer is its own only mode."""
    return (value,) if isinstance(value, int) else value


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Whether two tuples have the same nesting."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(congruent, a, b))


def compact(shape: IntTuple, first: int = 1) -> IntTuple:
    """The strides, congruent with a shape, of its column-major layout: the leftmost integer varies fastest.

    As in CuTe, an extent of 1 has stride 0.
    """
    if isinstance(shape, int):
        return first if shape > 1 else 0
    strides = []
    for mode in shape:
        strides.append(compact(mode, first))
        first *= product(mode)
    return tuple(strides)


def crd2idx(coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    """The index of a coordinate. An integer counts through a mode in column-major order; a tuple has an item per mode.

    Raises:
        LayoutError: the coordinate is nested deeper than the shape, or is outside the shape.
    """
    if isinstance(coordinate, int):
        if not 0 <= coordinate < product(shape):
            raise LayoutError(
                f"coordinate {coordinate} is outside a mode of shape {text(shape)}; it must be from 0 to "
                f"{product(shape) - 1}"
            )
        of_leaves = zip(flat(shape), flat(stride), strict=True)
        index = 0
        for extent, step in of_leaves:
            index += coordinate % extent * step
            coordinate //= extent
        return index
    if isinstance(shape, int) or isinstance(stride, int) or len(coordinate) != len(shape):
        raise LayoutError(
            f"coordinate {text(coordinate)} has {_modes(coordinate)}, but shape {text(shape)} has "
            f"{'no nested modes' if isinstance(shape, int) else rank(shape)}; pass one value per mode, or an integer"
        )
    return sum(map(crd2idx, coordinate, shape, stride))


def _modes(value: tuple[IntTuple, ...]) -> str:
    return f"{len(value)} mode{'s' * (len(value) != 1)}"


def idx2crd(index: IntTuple, shape: IntTuple) -> IntTuple:
    """The coordinate, congruent with a shape, of an index in column-major order; mode by mode for a tuple.

    Raises:
        LayoutError: as for :func:`crd2idx`.
    """
    if isinstance(index, int):
        if not 0 <= index < product(shape):
            raise LayoutError(
                f"index {index} is outside shape {text(shape)}; it must be from 0 to {product(shape) - 1}"
            )
        if isinstance(shape, int):
            return index
        coordinate = []
        for mode in shape:
            coordinate.append(idx2crd(index % product(mode), mode))
            index //= product(mode)
        return tuple(coordinate)
    if isinstance(shape, int) or len(index) != len(shape):
        crd2idx(index, shape, compact(shape))  # raises the error
        raise AssertionError
    return tuple(map(idx2crd, index, shape))


def coordinates(shape: IntTuple) -> Iterator[IntTuple]:
    """Every natural coordinate of a shape, in column-major order."""
    return (idx2crd(index, shape) for index in range(product(shape)))
