"""Products of PyTorch's DTensors: which placements of operands give which of D, on each dimension of a mesh.

Importing this registers the rules; it imports ``torch.distributed.tensor``, so it is imported where a program has done
that (:func:`gemmill.runtime.torch.gradients.recorded.shard`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Placed = tuple[list[Any], list[Any]]
"""Placements of D, and of the tensors in the order of the schema."""


def of_product(a: Any, b: Any, **_: Any) -> list[Placed]:
    """``a @ b``: shards of rows, of columns and of each batch extent give those of D; of K, parts of its sums."""
    return _placements([], a, b, [])


def of_sum(c: Any, a: Any, b: Any, **_: Any) -> list[Placed]:
    """The same ``+ beta * c``."""
    return _placements([c], a, b, [])


def of_scaled(a: Any, b: Any, a_scale: Any = None, b_scale: Any = None, *c: Any, **_: Any) -> list[Placed]:
    """The same with scales of all, of rows and of columns, which go with D as C does. Beside scales of blocks or groups
    along K, shards of rows alone, and of K none: they might end within a block."""
    shape, scales = _shape_of_d(a, b), (a_scale, b_scale)
    if all(_broadcasts(x.tensor_meta.shape, shape) for x in scales if x is not None):
        return _placements([], a, b, [*scales, *c])
    return _by_rows(a, b, [*scales, *c], (0, 2))


def of_mixed(a: Any, b: Any, *others: Any, **_: Any) -> list[Placed]:
    """A product of narrow weights: shards of the rows of A, of its scales, zero points and C."""
    return _by_rows(a, b, others, (0, 2, 4))


def of_groups(a: Any, b: Any, *others: Any, **_: Any) -> list[Placed]:
    """Groups of rows of A, each with a B of its own: without scales or C, shards of columns of B give those of D, and
    of K parts of its sums. All else is whole everywhere."""
    whole: list[Any] = [Replicate(), *(x if x is None else Replicate() for x in (a, b, *others))]
    found = [([whole[0]], [Replicate(), Replicate(), *whole[3:]])]
    if b.ndim == 3 and not any(x is not None for x in others[2:]):
        along_k = [Shard(a.ndim - 1), Shard(1), *whole[3:]]
        found += [([Shard(a.ndim - 1)], [Replicate(), Shard(2), *whole[3:]]), ([Partial()], along_k)]
    return found


def _by_rows(a: Any, b: Any, others: Sequence[Any], of_rows: Collection[int]) -> list[Placed]:
    """All whole; or, of two matrices, the rows of A and of D in shards, with those of the others that have as many,
    which ``of_rows`` says of A's scales and C by their place."""
    rows = a.tensor_meta.shape[-2]

    def placed(place: int, x: Any) -> Any:
        if x is None:
            return None
        in_shards = place in of_rows and x.ndim == 2 and x.tensor_meta.shape[0] == rows != 1
        return Shard(0) if in_shards else Replicate()

    found: list[Placed] = [
        ([Replicate()], [Replicate(), Replicate(), *(x if x is None else Replicate() for x in others)])
    ]
    if a.ndim == b.ndim == 2:
        found.append(([Shard(0)], [Shard(0), Replicate(), *(placed(i, x) for i, x in enumerate(others))]))
    return found


def _placements(before: Sequence[Any], a: Any, b: Any, behind: Sequence[Any]) -> list[Placed]:
    """Of tensors that broadcast to D before A and behind B in the schema; None for those that are not given."""
    shape = _shape_of_d(a, b)
    others = [x for x in (*before, *behind) if x is not None]
    of_others = [along(x.tensor_meta.shape, shape) for x in others]
    of_a = along((*a.tensor_meta.shape[:-1], 1), shape)
    of_b = along((*b.tensor_meta.shape[:-2], 1, b.tensor_meta.shape[-1]), shape)

    def placed(d: Any, a: Any, b: Any, others: Iterable[Any]) -> Placed:
        given = iter(others)
        first = [next(given) for _ in before]
        return [d], [*first, a, b, *(None if x is None else next(given) for x in behind)]

    found = [placed(Replicate(), Replicate(), Replicate(), [Replicate() for _ in others])]
    if all(x is None for x in behind[2:]):  # scales multiply parts of sums, and a C behind is added once
        parts = [Replicate() if behind else Partial() for _ in others]
        found.append(placed(Partial(), Shard(a.ndim - 1), Shard(b.ndim - 2), parts))
    return [*found, *(placed(Shard(i), of_a(i), of_b(i), [x(i) for x in of_others]) for i in range(len(shape)))]


def _shape_of_d(a: Any, b: Any) -> tuple[int, ...]:
    rank = max(a.ndim, b.ndim)
    shape_a, shape_b = (x.tensor_meta.shape for x in (a, b))
    batch = [max(x, y) for x, y in zip(_padded(shape_a[:-2], rank - 2), _padded(shape_b[:-2], rank - 2), strict=True)]
    return (*batch, shape_a[-2], shape_b[-1])


def _broadcasts(own: Any, shape: Any) -> bool:
    """Whether scales are one for all, one for each row, or one for each column."""
    padded = _padded(own, len(shape))
    fits = all(x in (1, extent) for x, extent in zip(padded, shape, strict=True))
    return fits and 1 in padded[-2:]


def along(own: Any, shape: Any, rank: int | None = None) -> Callable[[int], Any]:
    """What gives the placement of a tensor that broadcasts to a shape, where that is sharded along an axis; ``rank``
    where the tensor has fewer axes than extents are given, whose others are 1."""

    def placement(axis: int) -> Any:
        at = axis - len(shape) + len(own)
        return Shard(at if rank is None else min(at, rank - 1)) if at >= 0 and own[at] != 1 else Replicate()

    return placement


def _padded(extents: Any, rank: int) -> list[Any]:
    return [*[1] * (rank - len(extents)), *extents]


_RULES: Mapping[str, Callable[..., list[Placed]]] = {
    "mm": of_product,
    "bmm": of_product,
    "addmm": of_sum,
    "baddbmm": of_sum,
    "scaled_mm": of_scaled,
    "mixed_mm": of_mixed,
    "grouped_mm": of_groups,
}
for _name, _rule in _RULES.items():
    register_sharding(getattr(torch.ops.gemmill, _name).default)(_rule)
