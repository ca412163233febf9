"""Gradients: gemmill computes those of products, and JAX those of scales before and expressions after them.

For ``a @ b``, the gradient of A is ``g @ b.mT`` and that of B is ``a.mT @ g``. Transposes are bitcasts, because kernels
read either major, so nothing is copied. JAX differentiates the expression on sums that are recomputed. Operands of at
most 8 bits are multiplied in bf16. Rounding to a type passes gradients through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from gemmill.runtime.jax.description import Array, Description, abstract_call
from gemmill.runtime.jax.reference import expression, operands_in_full

_KEPT = ("accumulator", "tf32", "deterministic", "quick", "objective")
"""Options that also apply to the products of a gradient."""

Arrays = tuple[Any, ...]
Run = Callable[..., Arrays]


@partial(jax.jit, static_argnums=(0, 1), inline=True)
def backward(run: Run, description: Description, arrays: Arrays, of_results: Arrays) -> tuple[Any, ...]:
    """Gradients of the operands from those of the outputs; None for operands that have none. The function is jitted, so
    that XLA turns transposes into bitcasts also in eager calls."""
    named = dict(zip(description.operands, arrays, strict=True))
    call = abstract_call(description, [Array.of(name, x) for name, x in named.items()])
    floating = {name: x for name, x in named.items() if name != "out" and jnp.issubdtype(x.dtype, jnp.floating)}
    before = {name: x for name, x in floating.items() if name in call.tensors and name != "c"}
    behind = {name: x for name, x in floating.items() if name not in before}

    def in_full(some: Mapping[str, Any]) -> tuple[Any, Any]:
        return operands_in_full(call, {**named, **some}, jnp)

    def outputs(sums: Any, some: Mapping[str, Any]) -> list[Any]:
        return expression(call, sums, {**named, **some}, jnp)

    (a, b), of_before = jax.vjp(in_full, before)
    dtype = next((x.dtype for x in (named["a"], named["b"]) if x.dtype.itemsize > 1), jnp.dtype("bfloat16"))
    product = _Product(run, description, named, a.astype(dtype), b.astype(dtype))
    reads_sums = call.arguments.text is not None or bool(call.arguments.values)
    sums = product.sums() if reads_sums else jnp.zeros_like(of_results[0], product.wide)
    _, of_behind = jax.vjp(outputs, sums, behind)
    of_values = [
        jnp.zeros(g.shape, sums.dtype) if g.dtype == jax.dtypes.float0 else g.astype(sums.dtype) for g in of_results
    ]
    of_values[0] = product.inside(of_values[0])
    of_sums, gradients = of_behind(of_values)
    of_a, of_b = product.gradients(of_sums.astype(dtype))
    (more,) = of_before((of_a.astype(a.dtype), of_b.astype(b.dtype)))
    gradients |= more
    return tuple(_narrowed(gradients[name], x.dtype) if name in gradients else None for name, x in named.items())


class _Product(NamedTuple):
    """The product of a call, with A and B in one dtype."""

    run: Run
    description: Description
    named: Mapping[str, Any]
    a: Any
    b: Any

    @property
    def wide(self) -> Any:
        """The dtype in which the sums are differentiated."""
        return jnp.dtype("float64" if self.a.dtype == jnp.float64 else "float32")

    def sums(self) -> Any:
        """The sums; 0 outside of all groups."""
        turned = self.description.turned
        wide = None if self.description.groups else str(self.wide)  # kernels of groups write D in the operands' dtype
        return self.inside(self._multiplied(self.a, self.b, turned, out_dtype=wide).astype(self.wide))

    def inside(self, values: Any) -> Any:
        """Values of D's shape, with 0 in rows outside of all groups, which kernels do not write."""
        kind = self.description.groups
        if kind == "counts":
            rows = jnp.arange(self.a.shape[-2]) < self.named[kind][:, None]
            return jnp.where(rows[..., None], values, 0)
        if kind == "offsets" and self.b.ndim == 3:
            return self._in_groups(values)
        return values

    def gradients(self, g: Any) -> tuple[Any, Any]:
        """Gradients of A and B from that of the sums, each in the layout of its operand."""
        a, b, kind = self.a, self.b, self.description.groups
        a_is_turned, b_is_turned = ("a" in self.description.turned), ("b" in self.description.turned)
        right = () if b_is_turned else ("b",)  # the layout of B's transpose
        left = () if a_is_turned else ("a",)
        if kind == "counts":
            of_b = self._multiplied(_t(self.inside(a)), g, left, b_is_turned, kind="")
            return self.inside(self._multiplied(g, _t(b), right)), of_b
        if kind and b.ndim == 3:  # groups along K need A contiguous along M, B along N
            of_b = self._multiplied(_t(a), g, ("a",), b_is_turned)
            return self._in_groups(self._multiplied(g, _t(b), right)), of_b
        if kind:
            of_a = _t(self._in_groups(self._multiplied(b, _t(g), ("a", "b") if b_is_turned else ("b",))))
            return of_a, self._in_groups(self._multiplied(_t(a), g, left))
        of_a = self._multiplied(g, _t(b), right, a_is_turned)
        if b.ndim == 2 and a.ndim > 2:  # one product instead of one for each matrix and a sum
            a, g = _flat(a), _flat(g)
        of_b = self._multiplied(_t(a), g, left, b_is_turned)
        return _summed(of_a, self.a.shape), _summed(of_b, b.shape)

    def _multiplied(
        self,
        a: Any,
        b: Any,
        turned: tuple[str, ...],
        is_turned: bool = False,
        *,
        out_dtype: str | None = None,
        kind: str | None = None,
    ) -> Any:
        """A product with the same groups; the operands in ``turned`` are column-major.

        With ``is_turned`` the result is column-major too: it is computed as the transpose, so that XLA cancels two
        transposes.
        """
        if is_turned:
            others = tuple(x for x, y in (("a", "b"), ("b", "a")) if y not in turned)
            return _t(self._multiplied(_t(b), _t(a), others, out_dtype=out_dtype, kind=kind))
        kind = self.description.groups if kind is None else kind
        settings = {name: x for name, x in self.description.settings if name in _KEPT}
        names, arrays = (("a", "b", kind), (a, b, self.named[kind])) if kind else (("a", "b"), (a, b))
        described = Description(names, turned, tuple(sorted(settings.items()))).but(out_dtype=out_dtype)
        return self.run(described, *arrays)[0]

    def _in_groups(self, values: Any) -> Any:
        """The values with 0 in rows after the last offset."""
        rows = jnp.arange(values.shape[0]) < self.named["offsets"][-1]
        return jnp.where(rows[:, None], values, 0)


def _narrowed(x: Any, dtype: Any) -> Any:
    """A gradient in the dtype of its operand, saturated if that has 8 bits."""
    largest = float(jnp.finfo(dtype).max)
    return (jnp.clip(x, -largest, largest) if dtype.itemsize == 1 else x).astype(dtype)


def _t(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def _flat(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def _summed(values: Any, shape: tuple[int, ...]) -> Any:
    """Sum the gradient of a broadcast array to the array's shape."""
    outer = values.ndim - len(shape)
    axes = tuple(range(outer)) + tuple(outer + i for i, extent in enumerate(shape) if extent != values.shape[outer + i])
    return values.sum(axes, keepdims=True).reshape(shape) if axes else values
