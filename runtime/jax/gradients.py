"""Derivatives of a call: gemmill computes those of products, and JAX those of scales before and expressions after them.

For ``a @ b``, the gradient of A is ``g @ b.mT`` and that of B is ``a.mT @ g``. Transposes are bitcasts, because kernels
read either major, so nothing is copied. JAX differentiates the expression on sums that are recomputed. Operands of at
most 8 bits are multiplied in bf16. Rounding to a type passes derivatives through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from gemmill.runtime.jax.description import Array, Description, abstract_call, results
from gemmill.runtime.jax.reference import expression, operands_in_full
from gemmill.runtime.operands.call import GemmCall

_KEPT = ("accumulator", "tf32", "precision", "deterministic", "bits", "batch_invariant", "quick", "objective")
"""Options that also apply to the products of a derivative."""

Arrays = tuple[Any, ...]
Run = Callable[..., Arrays]
Named = Mapping[str, Any]
"""Arrays by the names of operands."""


@partial(jax.jit, static_argnums=(0, 1), inline=True)
def forward(run: Run, description: Description, arrays: Arrays, tangents: Named) -> Arrays:
    """Tangents of the floating-point outputs from those of some operands. The function is jitted, so that XLA turns
    transposes into bitcasts also in eager calls."""
    parts = _Parts.of(description, arrays)
    before, behind = ({name: tangents[name] for name in names} for names in parts.split(tangents))
    product = _Product.of(run, parts, *parts.in_full({}))
    of_sums = None
    if before:
        _, of_full = jax.jvp(parts.in_full, (parts.some(before),), (before,))
        of_sums = product.tangent(*(x if depends else None for x, depends in zip(of_full, _sides(before), strict=True)))
    sums = parts.sums(product, of_sums)
    of_sums = jnp.zeros_like(sums) if of_sums is None else of_sums
    _, of_outputs = jax.jvp(parts.outputs, (sums, parts.some(behind)), (of_sums, behind))
    of_outputs[0] = product.inside(of_outputs[0])
    return tuple(_narrowed(x, y) for x, y in zip(of_outputs, parts.dtypes, strict=True) if is_floating(y))


@partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def backward(run: Run, description: Description, names: tuple[str, ...], arrays: Arrays, of_results: Arrays) -> Arrays:
    """Gradients of the operands in ``names`` from those of the floating-point outputs."""
    parts = _Parts.of(description, arrays)
    before, behind = map(parts.some, parts.split(names))
    full, of_before = jax.vjp(parts.in_full, before)
    product = _Product.of(run, parts, *full)
    values, of_behind = jax.vjp(parts.outputs, parts.sums(product, of_results[0]), behind)
    given = iter(of_results)
    of_values = [
        next(given).astype(x.dtype) if is_floating(y) else jnp.zeros_like(x)
        for x, y in zip(values, parts.dtypes, strict=True)
    ]
    of_values[0] = product.inside(of_values[0])
    of_sums, gradients = of_behind(of_values)
    g = of_sums.astype(product.a.dtype)
    each = zip(full, (product.gradient_of_a, product.gradient_of_b), _sides(before), strict=True)
    of_full = tuple(compute(g).astype(x.dtype) if depends else jnp.zeros_like(x) for x, compute, depends in each)
    gradients |= of_before(of_full)[0]
    return tuple(_narrowed(gradients[name], parts.named[name].dtype) for name in names)


def _sides(names: Collection[str]) -> tuple[bool, bool]:
    """Whether A, and whether B in full depends on these operands."""
    return any(name.startswith("a") for name in names), any(name.startswith("b") for name in names)


def is_floating(dtype: Any) -> bool:
    """Whether values of a dtype have derivatives."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


class _Parts(NamedTuple):
    """A call as JAX differentiates it: operands in full, and the expression on the sums of their product."""

    description: Description
    named: Named
    call: GemmCall
    dtypes: Sequence[Any]
    """Of the outputs."""

    @classmethod
    def of(cls, description: Description, arrays: Arrays) -> _Parts:
        named = dict(zip(description.operands, arrays, strict=True))
        shapes = [Array.of(name, x) for name, x in named.items()]
        dtypes = [jnp.dtype(x.numpy) for x in results(description, shapes)]
        return cls(description, named, abstract_call(description, shapes), dtypes)

    def split(self, names: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        """The operands that are read before the product, and those that are read after it."""
        before = [name for name in names if name in self.call.tensors and name != "c"]
        return before, [name for name in names if name not in before]

    def some(self, names: Collection[str]) -> dict[str, Any]:
        """The arrays of these operands."""
        return {name: self.named[name] for name in names}

    def in_full(self, some: Named) -> tuple[Any, Any]:
        """A and B."""
        return operands_in_full(self.call, {**self.named, **some}, jnp)

    def outputs(self, sums: Any, some: Named) -> list[Any]:
        """D and the further outputs, before they are rounded."""
        return expression(self.call, sums, {**self.named, **some}, jnp)

    def sums(self, product: _Product, like: Any) -> Any:
        """The sums of the product; zeros if derivatives of the outputs do not depend on them. ``like`` is an array of
        D's shape, or None."""
        if self.call.arguments.text is not None or self.call.arguments.values:
            return product.sums()
        if like is None:
            return jnp.zeros(self.call.tensors["out"].shape, product.wide)
        return jnp.zeros_like(like, product.wide)


class _Product(NamedTuple):
    """The product of a call, with A and B in one dtype."""

    run: Run
    description: Description
    named: Named
    a: Any
    b: Any

    @classmethod
    def of(cls, run: Run, parts: _Parts, a: Any, b: Any) -> _Product:
        """The product of A and B, which are rounded to bf16 if both have 8 bits."""
        named = parts.named
        dtype = next((x.dtype for x in (named["a"], named["b"]) if x.dtype.itemsize > 1), jnp.dtype("bfloat16"))
        return cls(run, parts.description, named, a.astype(dtype), b.astype(dtype))

    @property
    def wide(self) -> Any:
        """The dtype in which the sums are differentiated."""
        return jnp.dtype("float64" if self.a.dtype == jnp.float64 else "float32")

    def sums(self) -> Any:
        """The sums; 0 outside of all groups."""
        return self.inside(self._sums(self.a, self.b))

    def tangent(self, of_a: Any, of_b: Any) -> Any:
        """The tangent of the sums from those of A and B, of which one may be None."""
        terms = [self._sums(of_a, self.b)] if of_a is not None else []
        terms += [self._sums(self.a, of_b)] if of_b is not None else []
        return self.inside(sum(terms[1:], terms[0]))

    def _sums(self, a: Any, b: Any) -> Any:
        a, b = a.astype(self.a.dtype), b.astype(self.b.dtype)
        wide = None if self.description.groups else str(self.wide)  # kernels of groups write D in the operands' dtype
        return self._multiplied(a, b, self.description.turned, out_dtype=wide).astype(self.wide)

    def inside(self, values: Any) -> Any:
        """Values of D's shape, with 0 in rows outside of all groups, which kernels do not write."""
        kind = self.description.groups
        if kind == "counts":
            rows = jnp.arange(self.a.shape[-2]) < self.named[kind][:, None]
            return jnp.where(rows[..., None], values, 0)
        if kind == "offsets" and self.b.ndim == 3:
            return self._in_groups(values)
        return values

    def gradient_of_a(self, g: Any) -> Any:
        """The gradient of A from that of the sums, in the layout of A."""
        b, kind, b_is_turned = self.b, self.description.groups, "b" in self.description.turned
        if kind == "offsets" and b.ndim == 2:
            return _t(self._in_groups(self._multiplied(b, _t(g), ("a", "b") if b_is_turned else ("b",))))
        right = () if b_is_turned else ("b",)  # the layout of B's transpose
        is_turned = "a" in self.description.turned and not kind
        if {"bits", "batch_invariant"} & self.description.keywords.keys():  # the N of a transposed product is M here
            is_turned = False
        of_a = self._multiplied(g, _t(b), right, is_turned)
        return _summed(self.inside(of_a), self.a.shape)

    def gradient_of_b(self, g: Any) -> Any:
        """The gradient of B from that of the sums, in the layout of B."""
        a, b, kind, b_is_turned = self.a, self.b, self.description.groups, "b" in self.description.turned
        left = () if "a" in self.description.turned else ("a",)  # the layout of A's transpose
        if kind == "counts":
            return self._multiplied(_t(self.inside(a)), g, left, b_is_turned, kind="")
        if kind and b.ndim == 3:  # groups along K need A contiguous along M, B along N
            return self._multiplied(_t(a), g, ("a",), b_is_turned)
        if kind:
            return self._in_groups(self._multiplied(_t(a), g, left))
        if b.ndim == 2 and a.ndim > 2:  # one product instead of one for each matrix and a sum
            a, g = _flat(a), _flat(g)
        return _summed(self._multiplied(_t(a), g, left, b_is_turned), b.shape)

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
