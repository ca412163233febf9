"""Compares shapes in a graph whose extents may be symbols, without adding guards.

A value with D's elements may have the extents before N (for a batch: before M) split or merged. For example, a layer
with input (B, S, K) views it as (B * S, K) for the product. The kind of an operand follows from how it broadcasts to
such a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from torch.fx.experimental.symbolic_shapes import statically_known_true

from gemmill.library.epilogues.tree import Kind

Extents = Sequence[Any]
"""The shape of a tensor; extents are int or SymInt."""


class Place(NamedTuple):
    """The kind of an operand of an expression, and the number of dimensions in which the operator takes it."""

    kind: Kind
    ndim: int
    """Dimensions of the tensor that is passed. Its last extents are D's; the first is the product of all others."""


def equal(x: Any, y: Any) -> bool:
    """Whether two extents are known to be equal."""
    return bool(statically_known_true(x == y))


def same(x: Extents, y: Extents) -> bool:
    """Whether two shapes are known to be equal."""
    return len(x) == len(y) and all(map(equal, x, y))


def is_empty(shape: Extents) -> bool:
    """Whether a shape is known to have no elements."""
    return any(equal(extent, 0) for extent in shape)


def is_like(shape: Extents, d: Extents) -> bool:
    """Whether a shape is that of D, (M, N) or (B, M, N), with its first extent split into any number of extents."""
    kept = len(d) - 1
    if len(shape) < len(d) or not same(shape[-kept:], d[1:]):
        return False
    return equal(prod(shape[:-kept]), d[0])


def place(shape: Extents, value: Extents, d: Extents) -> Place | None:
    """The place of an operand that broadcasts to a value with D's elements; None if expressions do not support it."""
    if len(shape) > len(value):
        return None
    padded = (*[1] * (len(value) - len(shape)), *shape)
    ones = [equal(extent, 1) for extent in padded]
    full = [equal(extent, wanted) for extent, wanted in zip(padded, value, strict=True)]
    if all(ones):
        return Place("scalar", len(shape))
    if all(ones[:-1]) and full[-1]:
        return Place("column", 1)
    if len(d) == 2:
        return _place_beside_matrix(ones, full)
    return _place_beside_batch(ones, full)


def _place_beside_matrix(ones: Sequence[bool], full: Sequence[bool]) -> Place | None:
    if ones[-1] and all(full[:-1]):
        return Place("row", 1)
    return Place("matrix", 2) if all(full) else None


def _place_beside_batch(ones: Sequence[bool], full: Sequence[bool]) -> Place | None:
    """The operand has either all extents of the batch, or one value that the whole batch shares."""
    shared, whole = all(ones[:-2]), all(full[:-2])
    if not (shared or whole):
        return None
    if ones[-1] and ones[-2]:
        return Place("batch", 1)
    if ones[-1] and full[-2]:
        return Place("row", 1 if shared else 2)
    return Place("matrix", 2 if shared else 3) if full[-1] and full[-2] else None


def is_a_view(tensor: Any, where: Place) -> bool:
    """Whether a tensor is known to have the shape of its place as a view, without a copy: the extents that become one
    must have matching strides."""
    kept = {"matrix": where.ndim - 1, "row": where.ndim, "batch": 2}.get(where.kind, tensor.dim())
    extents = [*zip(tensor.shape, tensor.stride(), strict=True)][: tensor.dim() - kept]
    extents = [(extent, stride) for extent, stride in extents if not equal(extent, 1)]
    return all(equal(outer[1], inner[1] * inner[0]) for outer, inner in pairwise(extents))
