"""The operators under ``torch.vmap``: products of matrices become one batched product, all others one call per slice.

Tensors that are not mapped over broadcast without a copy: kernels read them with stride 0. If only A is mapped over,
kernels read the rows of the whole batch as one matrix.
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
"""For each operator of matrices, the operator that computes a batch of them."""


def register(library: torch.library.Library, name: str) -> None:
    """Register an operator's rule for ``torch.vmap``."""
    operator = getattr(torch.ops.gemmill, name).default
    names = [x.name for x in operator._schema.arguments if not x.kwarg_only]

    def as_batch(info: Any, axes: Sequence[Any], *positional: Any, **keywords: Any) -> tuple[Any, int]:
        multiply = getattr(torch.ops.gemmill, _OF_BATCHES[name]).default
        tensors = dict(zip(names, positional, strict=False))
        axis_of = dict(zip(names, axes, strict=False))
        ranks = {x: tensors[x].dim() - (axis_of[x] is not None) for x in ("a", "b")}
        rank = max(ranks.values())
        if axis_of["a"] is None and axis_of["b"] is None:  # only C or a scale is mapped over
            tensors["a"], axis_of["a"] = tensors["a"].expand(info.batch_size, *tensors["a"].shape), 0
        batched = [x if axis_of[name] is None else _in_front(x, axis_of[name], rank) for name, x in tensors.items()]
        return multiply(*batched, **keywords), 0

    def one_by_one(info: Any, axes: Sequence[Any], *positional: Any, **keywords: Any) -> tuple[Any, Any]:
        slices = [operator(*_slice(positional, axes, i), **keywords) for i in range(info.batch_size)]
        if isinstance(slices[0], torch.Tensor):
            return torch.stack(slices), 0
        return [torch.stack(x) for x in zip(*slices, strict=True)], [0] * len(slices[0])

    rule = as_batch if name in _OF_BATCHES else one_by_one
    torch.library.register_vmap(f"gemmill::{name}", rule, lib=library)


def _in_front(x: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """Move the mapped axis to the front, and insert axes of 1 after it until the other axes number ``rank``."""
    front = x.movedim(axis, 0)
    return front[(slice(None), *[None] * (rank - front.dim() + 1))]


def _slice(arguments: Sequence[Any], axes: Any, index: int) -> list[Any]:
    """The arguments of one slice: tensors, also those in lists, are indexed along their mapped axes."""
    if axes is None:
        return [*arguments]
    return [
        _slice(x, axis, index) if isinstance(x, list | tuple) else x if axis is None else x.select(axis, index)
        for x, axis in zip(arguments, axes, strict=True)
    ]
