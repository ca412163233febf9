"""A batch of calls, as ``vmap`` makes one: one launch where the batch can be another extent of D, else one after the
other. What is not batched stays as it is, and is read at a stride of 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp

from gemmill.library.epilogues.syntax import SCALES
from gemmill.runtime.jax.described import Array, results, views
from gemmill.runtime.jax.description import Description


def batched(
    run: Callable[..., tuple[Any, ...]],
    description: Description,
    size: int,
    are_batched: Sequence[bool],
    arrays: Sequence[jax.Array],
) -> tuple[Any, ...]:
    """What the calls make, each behind an extent of the batch."""
    names = description.operands
    kinds = {x.name: x.kind for x in description.epilogue.operands}
    together = not description.groups and all(x.kind != "scalar" for x in description.epilogue.outputs)
    if not together or any(y and kinds.get(name) == "scalar" for name, y in zip(names, are_batched, strict=True)):
        return _one_by_one(run, description, are_batched, arrays)
    own = [Array.of(n, x)._replace(shape=x.shape[y:]) for n, x, y in zip(names, arrays, are_batched, strict=True)]
    rank = len(results(description, views(description, own, (0,) * len(own)))[0].shape)
    given: dict[str, Any] = {}
    for name, array, x, is_batched in zip(names, arrays, own, are_batched, strict=True):
        kind = "matrix" if name in SCALES and len(x.shape) > 1 else kinds.get(name, "matrix")
        inner = {"row": 1, "column": 1, "batch": 0}.get(kind, 2)
        given[name] = _behind(array, rank - 2 + inner) if is_batched else array
    if not (are_batched[0] or are_batched[1]):  # whose batch is D's
        given["a"] = jnp.broadcast_to(given["a"], (size, *(1,) * (rank - len(own[0].shape)), *own[0].shape))
    if "out" in given and not are_batched[names.index("out")]:
        del given["out"]  # memory for one of them
        description = description.without("out")
    if description.into_c and not are_batched[names.index("c")]:
        given["c"] = jnp.broadcast_to(given["c"], (size, *given["c"].shape))
    return run(description, *given.values())


def _behind(array: jax.Array, rank: int) -> jax.Array:
    """A batched array with extents of 1 behind that of the batch, so that the others are as many as D has."""
    return array.reshape(array.shape[0], *(1,) * (rank + 1 - array.ndim), *array.shape[1:])


def _one_by_one(
    run: Callable[..., tuple[Any, ...]],
    description: Description,
    are_batched: Sequence[bool],
    arrays: Sequence[jax.Array],
) -> tuple[Any, ...]:
    def one(some: list[jax.Array]) -> tuple[Any, ...]:
        left = iter(some)
        return run(description, *(next(left) if y else x for x, y in zip(arrays, are_batched, strict=True)))

    found: tuple[Any, ...] = jax.lax.map(one, [x for x, y in zip(arrays, are_batched, strict=True) if y])
    return found
