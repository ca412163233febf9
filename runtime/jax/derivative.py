"""The derivative of a call as a primitive of JAX: a linear map of tangents whose transpose is known.

JAX derives ``jvp``, ``vjp`` and ``linearize`` from it, nested in any order. Forward mode runs the map, and reverse mode
its transpose, whose kernels are those of dgrad and wgrad. Only the operands of the call are kept in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemmill.library.errors import OperandError
from gemmill.runtime.jax import gradients
from gemmill.runtime.jax.description import Array, Description, results
from gemmill.runtime.jax.mesh_axes import axes_of, types_of

Arrays = tuple[Any, ...]
Axes = tuple[int | None, ...]


class Batch(NamedTuple):
    """A ``vmap`` around a derivative."""

    size: int
    arrays: Axes
    """The batched axis of each operand, or None."""
    tangents: Axes
    """The batched axis of each tangent, or None."""


class Derivative(NamedTuple):
    """Maps tangents of some operands of a call to tangents of its floating-point outputs."""

    run: Callable[..., Arrays]
    """Computes a described call."""
    description: Description
    names: tuple[str, ...]
    """The operands that have a tangent."""
    batches: tuple[Batch, ...] = ()
    """The outermost last."""

    def map(self, arrays: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the outputs. A batch becomes their first extent."""
        if self.batches:
            batch, inner = self.batches[-1], self._replace(batches=self.batches[:-1])
            each = jax.vmap(inner.map, (batch.arrays, batch.tangents), axis_size=batch.size)
            return tuple(each(arrays, tangents))
        named = dict(zip(self.names, tangents, strict=True))
        return tuple(gradients.forward(self.run, self.description, arrays, named))

    def transpose(self, arrays: Arrays, cotangents: Arrays) -> Arrays:
        """Gradients of the operands in ``names`` from those of the outputs."""
        if self.batches:
            batch, inner = self.batches[-1], self._replace(batches=self.batches[:-1])
            places = tuple(axis or 0 for axis in batch.tangents)
            each = jax.vmap(inner.transpose, (batch.arrays, 0), places, axis_size=batch.size)
            of_batch = zip(each(arrays, cotangents), batch.tangents, strict=True)
            return tuple(x.sum(0) if axis is None else x for x, axis in of_batch)
        return tuple(gradients.backward(self.run, self.description, self.names, arrays, cotangents))

    def only(self, kept: Sequence[int]) -> Derivative:
        """The derivative by some of the operands, given their positions in ``names``."""
        batches = (x._replace(tangents=tuple(x.tangents[i] for i in kept)) for x in self.batches)
        return self._replace(names=tuple(self.names[i] for i in kept), batches=tuple(batches))


def tangents_of(
    run: Callable[..., Arrays], description: Description, arrays: Arrays, tangents: Arrays, outputs: Arrays
) -> Arrays:
    """Tangents of a call's outputs. Operands without a tangent cost nothing."""
    given = {
        name: tangent
        for name, x, tangent in zip(description.operands, arrays, tangents, strict=True)
        if name != "out" and gradients.is_floating(x.dtype) and not isinstance(tangent, ad.Zero)
    }
    if not given or not any(gradients.is_floating(x.dtype) for x in outputs):
        return tuple(ad.Zero.from_primal_value(x) for x in outputs)
    for output in description.epilogue.outputs:
        if output.dtype == "ue8m0":
            raise OperandError(
                f"`{output}` has no derivative, because ue8m0 holds neither 0 nor negative numbers: use f32, or pass "
                "the operands through jax.lax.stop_gradient"
            )
    derivative = Derivative(run, description, tuple(given))
    computed = iter(_derivative.bind(*arrays, *given.values(), derivative=derivative))
    return tuple(next(computed) if gradients.is_floating(x.dtype) else ad.Zero.from_primal_value(x) for x in outputs)


_derivative = Primitive("gemmill_derivative")
"""Takes the operands of a call, then tangents."""
_derivative.multiple_results = True


def _split(values: Sequence[Any], derivative: Derivative) -> tuple[Arrays, Arrays]:
    """Operands and tangents."""
    count = len(derivative.description.operands)
    return tuple(values[:count]), tuple(values[count:])


def _map(*values: Any, derivative: Derivative) -> Arrays:
    return derivative.map(*_split(values, derivative))


def _types(*types: Any, derivative: Derivative) -> Sequence[Any]:
    arrays = []
    for i, (name, x) in enumerate(zip(derivative.description.operands, types, strict=False)):
        shape = [*x.shape]
        for batch in reversed(derivative.batches):
            if (axis := batch.arrays[i]) is not None:
                del shape[axis]
        arrays.append(Array.of(name, jax.ShapeDtypeStruct(shape, x.dtype)))
    sizes = [batch.size for batch in reversed(derivative.batches)]
    outputs = [x for x in results(derivative.description, arrays) if gradients.is_floating(jnp.dtype(x.numpy))]
    return types_of([((*sizes, *x.shape), x.numpy) for x in outputs], axes_of(*types))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, derivative: Derivative) -> tuple[Any, Any]:
    """The derivative is linear in its tangents. By the operands, JAX differentiates its products again."""
    given = [i for i, x in enumerate(tangents) if not isinstance(x, ad.Zero)]
    arrays, own = _split(primals, derivative)
    if all(i >= len(arrays) for i in given):
        by_given = derivative.only([i - len(arrays) for i in given])
        further = _derivative.bind(*arrays, *(tangents[i] for i in given), derivative=by_given)
        return _derivative.bind(*arrays, *own, derivative=derivative), further

    def of_given(*some: Any) -> Arrays:
        values = dict(enumerate(primals)) | dict(zip(given, some, strict=True))
        return derivative.map(*_split([*values.values()], derivative))

    outputs: tuple[Any, Any] = jax.jvp(of_given, [primals[i] for i in given], [tangents[i] for i in given])
    return outputs


def _transpose(cotangents: Sequence[Any], *values: Any, derivative: Derivative) -> Sequence[Any]:
    arrays, own = _split(values, derivative)
    wanted = [i for i, x in enumerate(own) if ad.is_undefined_primal(x)]
    gradients: dict[int, Any] = {i: ad.Zero(own[i].aval) for i in wanted}
    if not all(isinstance(x, ad.Zero) for x in cotangents):
        full = tuple(map(ad.instantiate_zeros, cotangents))
        gradients = dict(zip(wanted, derivative.only(wanted).transpose(arrays, full), strict=True))
    return [None] * len(arrays) + [gradients.get(i) for i in range(len(own))]


def _batched(values: Sequence[Any], axes: Sequence[int | None], *, derivative: Derivative) -> tuple[Any, Any]:
    size = next(x.shape[axis] for x, axis in zip(values, axes, strict=True) if axis is not None)
    batch = Batch(size, *_split(axes, derivative))
    outputs = _derivative.bind(*values, derivative=derivative._replace(batches=(*derivative.batches, batch)))
    return outputs, [0] * len(outputs)


_derivative.def_impl(_map)
_derivative.def_abstract_eval(_types)
ad.primitive_jvps[_derivative] = _jvp
ad.primitive_transposes[_derivative] = _transpose
batching.primitive_batchers[_derivative] = _batched
mlir.register_lowering(_derivative, mlir.lower_fun(_map, multiple_results=True))
