"""The axes of a mesh along which arrays vary inside ``jax.shard_map``. All operands of a call must vary along the same
axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp


def axes_of(*types: Any) -> frozenset[str]:
    """The axes along which arrays of these JAX types may differ."""
    return frozenset[str]().union(*map(_axes, types))


def _axes(kind: Any) -> frozenset[str]:
    named = getattr(kind, "manual_axis_type", None)  # since JAX 0.10
    axes: frozenset[str] = getattr(kind, "vma", frozenset()) if named is None else named.varying
    return axes


def spread(x: Any, axes: frozenset[str]) -> Any:
    """Mark an array as varying along these axes."""
    missing = tuple(axes - _axes(jax.typeof(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def types_of(arrays: Sequence[tuple[tuple[Any, ...], Any]], axes: frozenset[str]) -> Sequence[Any]:
    """The JAX types of arrays of these shapes and dtypes that vary along these axes."""
    traced = jax.make_jaxpr(lambda: tuple(spread(jnp.zeros(shape, dtype), axes) for shape, dtype in arrays))
    types: Sequence[Any] = traced().out_avals
    return types
