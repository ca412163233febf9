"""The operators under ``torch.vmap``: products of matrices become those of a batch, all others one call a slice.

What is not mapped over stays as it is, and broadcasts: kernels read it at a stride of 0, or, where A alone is mapped
over, all of its rows as those of one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

_OF_BATCHES: Mapping[str, str] = MappingProxyType(
    {
        "mm": "bmm",
        "bmm": "bmm",
        "addmm": "baddbmm",
        "baddbmm": "baddbmm",
        "scaled_mm": "scaled_mm",
        "mixed_mm": "mixed_mm",
    }
)
"""By operator, the one of a batch."""


def register(library: torch.library.Library, name: str) -> None:
    """Register what an operator is under ``torch.vmap``."""
    operator = getattr(torch.ops.gemmill, name).default
    names = [x.name for x in operator._schema.arguments if not x.kwarg_only]

    def as_batch(info: Any, axes: Sequence[Any], *positional: Any, **keywords: Any) -> tuple[Any, int]:
        multiply = getattr(torch.ops.gemmill, _OF_BATCHES[name]).default
        tensors = dict(zip(names, positional, strict=False))
        axis_of = dict(zip(names, axes, strict=False))
        ranks = {x: tensors[x].dim() - (axis_of[x] is not None) for x in ("a", "b")}
        rank = max(ranks.values())
        if axis_of["a"] is None and axis_of["b"] is None:  # C or a scale is mapped over
            tensors["a"], axis_of["a"] = tensors["a"].expand(info.batch_size, *tensors["a"].shape), 0
        batched = [x if axis_of[name] is None else _in_front(x, axis_of[name], rank) for name, x in tensors.items()]
        return multiply(*batched, **keywords), 0

    def one_by_one(info: Any, axes: Sequence[Any], *positional: Any, **keywords: Any) -> tuple[Any, Any]:
        made = [operator(*_slice(positional, axes, i), **keywords) for i in range(info.batch_size)]
        if isinstance(made[0], torch.Tensor):
            return torch.stack(made), 0
        return [torch.stack(x) for x in zip(*made, strict=True)], [0] * len(made[0])

    rule = as_batch if name in _OF_BATCHES else one_by_one
    torch.library.register_vmap(f"gemmill::{name}", rule, lib=library)


def _in_front(x: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """A tensor with the axis that is mapped over in front of as many as D has."""
    front = x.movedim(axis, 0)
    return front[(slice(None), *[None] * (rank - front.dim() + 1))]


def _slice(arguments: Sequence[Any], axes: Any, index: int) -> list[Any]:
    """One slice of what is mapped over, in lists too."""
    if axes is None:
        return [*arguments]
    return [
        _slice(x, axis, index) if isinstance(x, list | tuple) else x if axis is None else x.select(axis, index)
        for x, axis in zip(arguments, axes, strict=True)
    ]
