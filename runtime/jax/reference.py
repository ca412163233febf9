"""Computes everything of a call except the sums: upconverted and scaled operands before them, the expression after.

``xp`` is NumPy, to run on the CPU, or ``jax.numpy``, to differentiate. Rounding to a type passes gradients through.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.scipy.special
import numpy as np
import scipy.special

from gemmill.library import e2m1
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.evaluation import reduced, values
from gemmill.library.epilogues.function_table import Arrays
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.tree import SCALE, Assignment, Kind, sums_by_name
from gemmill.library.errors import OperandError
from gemmill.library.problem import is_mixed
from gemmill.runtime.operands.binding import groups_kind
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.matrices import GROUP_SIZES, SCALE_BLOCK


def operands_in_full(call: GemmCall, arrays: Mapping[str, Any], xp: Any) -> tuple[Any, Any]:
    """A and B unpacked, A in the order of an index of its rows, and multiplied by those scales that cannot be applied
    to the sums."""
    a, b = arrays["a"], arrays["b"]
    left = {name: arrays[name] for name in (*SCALES, "a_zero", "b_zero") if name in call.tensors}
    if "rows" in call.tensors:
        index, extent = arrays["rows"], a.shape[b.ndim == 2]
        index = xp.where((index < 0) | (index >= extent), extent - 1, index)  # as kernels clamp it
        a = a[:, index] if b.ndim == 2 else a[index]
        left |= {"a_scale": left["a_scale"][index]} if "a_scale" in left else {}
    held_a, held_b = call.tensors["a"].dtype, call.tensors["b"].dtype
    if is_mixed(held_a, held_b):
        k = call.tensors["a"].shape[-1]
        a, b = (x.astype("float32") if dtype == "e4m3" else x for x, dtype in ((a, held_a), (b, held_b)))
        if DTYPES[held_a].bits < DTYPES[held_b].bits:
            turned = [None if x is None else x.swapaxes(-1, -2) for x in (left.get("a_scale"), left.get("a_zero"))]
            return _upconverted(a.swapaxes(-1, -2), held_a, k, b.dtype, *turned, xp=xp).swapaxes(-1, -2), b
        return a, _upconverted(b, held_b, k, a.dtype, left.get("b_scale"), left.get("b_zero"), xp=xp)
    if left:  # block scales
        wide = np.dtype("float32")
        a = a.astype(wide) * _repeated(left["a_scale"].astype(wide), -1, SCALE_BLOCK, a.shape[-1], xp)
        along_k = _repeated(left["b_scale"].astype(wide), -2, SCALE_BLOCK, b.shape[-2], xp)
        b = b.astype(wide) * _repeated(along_k, -1, SCALE_BLOCK, b.shape[-1], xp)
    return a, b


def expression(call: GemmCall, sums: Any, arrays: Mapping[str, Any], xp: Any) -> list[Any]:
    """D, then the further outputs of the expression, before they are rounded to their dtypes."""
    epilogue, options = call.arguments.epilogue, call.options
    if options.alpha == 0 and epilogue.sums_are_scaled:
        sums = xp.zeros_like(sums)
    inputs = sums_by_name(epilogue, sums)
    c_is_read = "c" in arrays and not (options.beta == 0 and epilogue.c_is_scaled)
    inputs["c"] = arrays["c"].astype(sums.dtype) if c_is_read else xp.zeros((), sums.dtype)
    inputs["alpha"] = xp.asarray(options.alpha, sums.dtype)
    inputs["beta"] = xp.asarray(1.0 if options.beta is None else options.beta, sums.dtype)
    rows = _groups_of_rows(call, arrays, xp)
    for x in epilogue.operands:
        value = call.arguments.values[x.name]
        if isinstance(value, float):
            inputs[x.name] = xp.asarray(value, sums.dtype)
        else:
            inputs[x.name] = _spread(x.name, x.kind, arrays[x.name].astype(sums.dtype), rows)
    arrays_of = Arrays(xp, erf=_SPECIAL[xp].erf, sigmoid=_SPECIAL[xp].expit, rounded=partial(_rounded, xp=xp))
    shape, results = call.tensors["out"].shape, {}
    assigned = values(epilogue, inputs, arrays_of, partial(xp.asarray, dtype=sums.dtype))
    for assignment in epilogue.assignments:
        if assignment.role == SCALE:
            results[assignment.name] = assigned[assignment.name]
        elif assignment.role != "local":
            full = xp.broadcast_to(assigned[assignment.name], shape)
            results[assignment.name] = _written(assignment, full, rows is not None, xp)
    return [results[name] for name in ("d", *(x.name for x in epilogue.outputs))]


_SPECIAL = {np: scipy.special, jax.numpy: jax.scipy.special}
"""The module of special functions for each array module."""


def _rounded(x: Any, dtype: DTypeName, xp: Any) -> Any:
    """Round to a type and back. Gradients pass through."""
    return x if dtype == "f32" else stored(x, dtype, xp).astype(x.dtype)


def stored(value: Any, dtype: DTypeName, xp: Any) -> Any:
    """Round values to a type, and saturate them if it has 8 bits."""
    into = jax.numpy.dtype(DTYPES[dtype].torch)
    if DTYPES[dtype].bits == 8:
        limits = jax.numpy.iinfo(into) if DTYPES[dtype].is_integer else jax.numpy.finfo(into)
        value = xp.clip(value, float(limits.min), float(limits.max))
    return (xp.round(value) if DTYPES[dtype].is_integer else value).astype(into)


def _written(assignment: Assignment, value: Any, shares_d: bool, xp: Any) -> Any:
    """The value of an output, from a value for each element of D."""
    if not assignment.is_reduction:
        return value
    if shares_d and assignment.kind in ("column", "batch"):
        raise OperandError(
            f"`{assignment}` has one value for each group of rows, which is not supported in derivatives and on the "
            "CPU: reduce D with jax.numpy"
        )
    if xp is jax.numpy:
        # The gradient of a maximum goes to the elements that equal it; XLA must not recompute them with other rounding.
        value = jax.lax.optimization_barrier(value)
    return reduced(assignment, value, xp)


def _spread(name: str, kind: Kind, value: Any, rows: Any) -> Any:
    """Reshape an operand so that it broadcasts to D. ``rows`` is the group of each row of D, if groups share D."""
    if kind == "scalar":
        return value.reshape(())
    axis = {"row": -1, "column": -2}.get(kind)
    is_spread = (
        name in SCALES and value.ndim > 1 and (value.shape[-2:] == (1, 1) if axis is None else value.shape[axis] == 1)
    )
    if is_spread and rows is None:
        return value
    if is_spread:
        value = value.reshape(value.shape[0], -1) if kind != "row" else value[..., 0]
    if rows is not None and kind in ("column", "batch") and value.ndim > (kind == "column"):
        return value.reshape(value.shape[0], -1)[rows]
    if kind == "row":
        return value[..., None]
    if kind == "batch":
        return value[..., None, None]
    return value[..., None, :] if kind == "column" and value.ndim > 1 else value


def _groups_of_rows(call: GemmCall, arrays: Mapping[str, Any], xp: Any) -> Any:
    """The group of each row of A; None if groups do not share D."""
    if groups_kind(call.tensors) != "offsets" or len(call.tensors["b"].shape) != 3:
        return None
    ends = arrays["offsets"]
    rows = xp.arange(call.tensors["out"].shape[0], dtype=ends.dtype)
    return xp.minimum(xp.searchsorted(ends, rows, side="right"), ends.shape[0] - 1)


def _upconverted(narrow: Any, held: DTypeName, k: int, dtype: Any, scale: Any, zero: Any, *, xp: Any) -> Any:
    """``(narrow - zero) * scale`` of groups along K, rounded after each step. A byte of the narrow (..., K, N) holds
    two 4-bit elements along K."""
    if held == "e2m1":
        codes = e2m1.from_fragment_order(narrow.swapaxes(-1, -2).astype("int32"), xp)
        narrow, scale = xp.asarray(e2m1.VALUES, dtype)[codes].swapaxes(-1, -2), scale.astype(dtype)
    elif DTYPES[held].bits == 4:
        low, high = narrow & 15, (narrow.view("uint8") >> 4).astype(narrow.dtype)
        both = xp.stack((low, high), axis=-2).reshape(*narrow.shape[:-2], -1, narrow.shape[-1])[..., :k, :]
        narrow = both if held == "u4" else xp.where(both > 7, both.astype("int8") - 16, both.astype("int8"))
    elif narrow.dtype.itemsize == 1:
        narrow = narrow.view(jax.numpy.dtype(DTYPES[held].torch))
    full = narrow.astype(dtype)
    for factor, apply in ((zero, xp.subtract), (scale, xp.multiply)):
        if factor is not None:
            size = next(size for size in GROUP_SIZES if -(-k // size) == factor.shape[-2])
            full = apply(full, _repeated(factor, -2, size, k, xp)).astype(dtype)
    return full


def _repeated(values: Any, axis: int, size: int, extent: int, xp: Any) -> Any:
    """Repeat values along an axis, to one for each element."""
    full = xp.repeat(values, size, axis=axis)
    return full[..., :extent] if axis == -1 else full[..., :extent, :]
