"""Plain products of PyTorch's DTensors: which placements of operands give which of D, on each dimension of a mesh.

Importing this registers the rules; it imports ``torch.distributed.tensor``, so it is imported where a program has done
that (:func:`gemmill.runtime.torch.gradients.recorded.shard`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Placed = tuple[list[Any], list[Any]]
"""Placements of D, and of the tensors in the order of the schema."""


def of_product(a: Any, b: Any, **_: Any) -> list[Placed]:
    """``a @ b``: shards of rows, of columns and of each batch extent give those of D; of K, parts of its sums."""
    return _placements(None, a, b)


def of_sum(c: Any, a: Any, b: Any, **_: Any) -> list[Placed]:
    """The same ``+ beta * c``."""
    return _placements(c, a, b)


def _placements(c: Any, a: Any, b: Any) -> list[Placed]:
    rank = max(a.ndim, b.ndim)
    shape_a, shape_b = (x.tensor_meta.shape for x in (a, b))
    batch = [max(x, y) for x, y in zip(_padded(shape_a[:-2], rank - 2), _padded(shape_b[:-2], rank - 2), strict=True)]
    shape = (*batch, shape_a[-2], shape_b[-1])
    of_c = None if c is None else _along(c.tensor_meta.shape, shape)
    of_a, of_b = _along((*shape_a[:-1], 1), shape), _along((*shape_b[:-2], 1, shape_b[-1]), shape)

    def placed(d: Any, c: Any, a: Any, b: Any) -> Placed:
        return [d], [a, b] if of_c is None else [c, a, b]

    found = [placed(*[Replicate()] * 4), placed(Partial(), Partial(), Shard(a.ndim - 1), Shard(b.ndim - 2))]
    return [*found, *(placed(Shard(i), of_c(i) if of_c else None, of_a(i), of_b(i)) for i in range(rank))]


def _along(own: Any, shape: Any) -> Callable[[int], Any]:
    """What gives the placement of a tensor that broadcasts to a shape, where that is sharded along an axis."""

    def placement(axis: int) -> Any:
        at = axis - len(shape) + len(own)
        return Shard(at) if at >= 0 and own[at] != 1 else Replicate()

    return placement


def _padded(extents: Any, rank: int) -> list[Any]:
    return [*[1] * (rank - len(extents)), *extents]


for _name, _rule in (("mm", of_product), ("bmm", of_product), ("addmm", of_sum), ("baddbmm", of_sum)):
    register_sharding(getattr(torch.ops.gemmill, _name).default)(_rule)
