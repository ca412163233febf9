"""Layouts of what an epilogue takes: vectors of any strides, and a batch whose matrices lie one behind the other.

Kernels read a vector's elements as neighbours. Where they are not, the call's expression says what serves it: one value
for all where the stride is 0, else a matrix that repeats the vector, which is read at any strides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from gemmill.library.epilogues.syntax import SCALES
from gemmill.library.epilogues.tree import Assignment, Epilogue, Kind, with_kinds
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.arguments import Value
from gemmill.runtime.operands.fused.scales import form
from gemmill.runtime.operands.strided import broadcast, one_stride
from gemmill.runtime.operands.tensors import TensorView


def fitted(
    epilogue: Epilogue, values: Mapping[str, Value], a: TensorView, b: TensorView, *, keep_rows: bool, shares_d: bool
) -> tuple[Epilogue, Mapping[str, Value]]:
    """An epilogue and its values as kernels take them.

    With ``keep_rows`` vectors along M stay as they are, so that M does not decide; where groups share D so do those
    of which each group has one, as no matrix repeats them.
    """
    kinds: dict[str, Kind] = {}
    fits = dict(values)
    for o in epilogue.operands:
        value = fits[o.name]
        if isinstance(value, float):
            continue
        if o.name in SCALES and (found := form(o.name, value, a if o.name == "a_scale" else b)) and found[0] == o.kind:
            value = found[1]
        kind = o.kind
        if kind == "column" or (kind == "row" and not keep_rows):
            kind, value = _as_vector(kind, value, len(a.shape) > 1 and len(b.shape) > 1)
            if kind == "matrix" and shares_d and len(value.shape) > 2:
                continue
        fits[o.name] = value
        if kind != o.kind:
            kinds[o.name] = kind
    return with_kinds(epilogue, kinds) if kinds else epilogue, fits


def _as_vector(kind: Kind, value: TensorView, has_both: bool) -> tuple[Kind, TensorView]:
    """A vector as a kernel reads it, and as what; ``has_both``: D has rows and columns."""
    shape, strides = value.shape, value.strides
    if not shape or shape[-1] < 2 or strides[-1] == 1:
        return kind, value
    if strides[-1] == 0:
        outer = replace(value, shape=shape[:-1], strides=strides[:-1])
        if all(step == 0 for extent, step in zip(outer.shape, outer.strides, strict=True) if extent > 1):
            return "scalar", replace(value, shape=(), strides=())
        return "batch", outer
    if has_both:  # along the other extent there is one
        at = len(shape) if kind == "row" else len(shape) - 1
        shape, strides = (*shape[:at], 1, *shape[at:]), (*strides[:at], 0, *strides[at:])
    return "matrix", replace(value, shape=shape, strides=strides)


def stacked(
    epilogue: Epilogue, values: Mapping[str, Value], d: TensorView, column_axis: bool
) -> tuple[Mapping[str, Value], TensorView] | None:
    """The values of an epilogue, and D, (..., M, N) or (..., M), where all of a batch is one matrix of more rows; None
    where they do not lie so, or where there is one for each matrix."""
    axis = len(d.shape) - column_axis
    rows, columns = d.shape[:axis], d.shape[axis:]
    flat: dict[str, Value] = {}
    for o in epilogue.arguments:
        value = values[o.name]
        if not isinstance(value, float) and o.kind != "scalar":
            found = _stacked(o.kind, value, rows, columns)
            if found is None or (isinstance(o, Assignment) and o.kind == "matrix" and value.shape != d.shape):
                return None
            value = found
        flat[o.name] = value
    return flat, replace(d, shape=(prod(rows), *columns), strides=d.strides[axis - 1 :])


def _stacked(kind: Kind, value: TensorView, rows: tuple[int, ...], columns: tuple[int, ...]) -> TensorView | None:
    own = value.shape
    if kind == "column" and prod(own[:-1]) == 1:
        return replace(value, shape=own[-1:], strides=value.strides[-1:])
    if kind not in ("row", "matrix") or (kind == "row" and own[-1:] != rows[-1:]):
        return None
    columns = columns if kind == "matrix" else ()
    try:
        strides = broadcast("", value.shape, value.strides, (*rows, *columns))
    except OperandError:  # which binding tells by its name
        return None
    step = one_stride(rows, strides[: len(rows)])
    if step is None or (kind == "row" and step != 1):
        return None
    return replace(value, shape=(prod(rows), *columns), strides=(step, *strides[len(rows) :]))
