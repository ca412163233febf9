"""Shapes in a graph, of which some extents are symbols: what is known of them without a guard.

A value of D's elements may be viewed with the extents before N (of a batch: before M) split or merged, as a module of
(B, S, K) does around its product of two matrices. An operand beside such a value is told by where it broadcasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from torch.fx.experimental.symbolic_shapes import statically_known_true

from gemmill.library.epilogues.tree import Kind

Extents = Sequence[Any]
"""Of a tensor: int or SymInt."""


class Place(NamedTuple):
    """What an operand of an expression has a value for, and the shape in which the operator takes it."""

    kind: Kind
    ndim: int
    """Of the tensor that is passed; its last extents are D's, the first is what they leave."""


def equal(x: Any, y: Any) -> bool:
    """Whether two extents are known to be equal."""
    return bool(statically_known_true(x == y))


def same(x: Extents, y: Extents) -> bool:
    """Whether two shapes are known to be equal."""
    return len(x) == len(y) and all(map(equal, x, y))


def is_empty(shape: Extents) -> bool:
    """Whether a shape is known to hold no element."""
    return any(equal(extent, 0) for extent in shape)


def is_like(shape: Extents, d: Extents) -> bool:
    """Whether a shape is a D's, (M, N) or (B, M, N), with its first extent split into any number of them."""
    kept = len(d) - 1
    if len(shape) < len(d) or not same(shape[-kept:], d[1:]):
        return False
    return equal(prod(shape[:-kept]), d[0])


def place(shape: Extents, value: Extents, d: Extents) -> Place | None:
    """Where an operand of a shape belongs that broadcasts to a value like a D; None where an expression takes none."""
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
    """Of the batch there may be all or, shared, one."""
    shared, whole = all(ones[:-2]), all(full[:-2])
    if not (shared or whole):
        return None
    if ones[-1] and ones[-2]:
        return Place("batch", 1)
    if ones[-1] and full[-2]:
        return Place("row", 1 if shared else 2)
    return Place("matrix", 2 if shared else 3) if full[-1] and full[-2] else None


def is_a_view(tensor: Any, where: Place) -> bool:
    """Whether a tensor is known to have the shape of its place without a copy: what becomes one extent lies as one."""
    kept = {"matrix": where.ndim - 1, "row": where.ndim, "batch": 2}.get(where.kind, tensor.dim())
    extents = [*zip(tensor.shape, tensor.stride(), strict=True)][: tensor.dim() - kept]
    extents = [(extent, stride) for extent, stride in extents if not equal(extent, 1)]
    return all(equal(outer[1], inner[1] * inner[0]) for outer, inner in pairwise(extents))
