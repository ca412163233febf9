"""An epilogue's arguments fitted to how kernels read them, and bound to the place where a kernel reads or writes each.

Kernels read a vector's elements as neighbours. Where they are not, the call's expression says what serves it: one value
for all where the stride is 0, else a matrix that repeats the vector, which is read at any strides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from gemmill.library.arch import TMA_MAX_STRIDE
from gemmill.library.config.model import BatchingName
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.tree import (
    INDEX,
    OUTPUT_DTYPES,
    Assignment,
    Epilogue,
    Kind,
    Major,
    with_kinds,
    with_majors,
)
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.runtime.operands.epilogue_arguments import Value
from gemmill.runtime.operands.matrices import broadcast, collapse, matrices, one_stride, refuse_overlap
from gemmill.runtime.operands.scaling import scale_kind
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
        if o.name in SCALES:
            found = scale_kind(o.name, value, a if o.name == "a_scale" else b)
            value = found[1] if found and found[0] == o.kind else value
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


_IDENTITY = {"max": 0xFF800000, "min": 0x7F800000, "sum": 0}
"""Bits of what a reduction starts from: -inf, inf, 0."""


class BoundArgument(NamedTuple):
    """One operand or output, as the launcher writes it: the address, and what follows it
    (emitters/epilogue/text.py)."""

    name: str
    address: int
    """0 for a host's value."""
    value: float
    """The host's value of a scalar."""
    strides: tuple[int, ...]
    """In elements: along M, N and the batch for matrices, along the batch for all else but scalars."""
    reset: tuple[int, int] | None = None
    """32-bit word, and their number, that an output is filled with before each launch."""
    major: Major = "any"
    """Of a matrix that TMA can move: its contiguous extent."""

    element_bytes: int = 0
    """Size of an element of a tensor."""

    @property
    def transposed(self) -> BoundArgument:
        """With the rows of a matrix called columns."""
        if len(self.strides) < 3:
            return self
        row, column, batch = self.strides
        return self._replace(strides=(column, row, batch))


def bind_arguments(
    epilogue: Epilogue,
    values: Mapping[str, Value],
    out: TensorView,
    row_axis: bool,
    column_axis: bool,
    groups: int | None = None,
) -> tuple[BoundArgument, ...]:
    """Operands and outputs bound to their places; OperandError names what does not fit.

    ``out`` is D; the axes say which of its last extents are M and N. ``x[m]`` is (M,) or (..., M), ``x[n]`` (N,) or
    (..., N) with the N of D, ``x[batch]`` (...), ``x[m, n]`` broadcasts to D; an output matrix has D's shape. Where D
    is one matrix that so many ``groups`` of rows share, these take the place of its batch; ``x[m]`` is then (M,).
    """
    axes = row_axis + column_axis
    rank = len(out.shape) - axes
    batch, m, n = out.shape[:rank], out.shape[rank] if row_axis else 1, out.shape[-1] if column_axis else 1
    outputs = {o.name: o for o in epilogue.outputs}
    bound = []
    for o in epilogue.arguments:
        value = values[o.name]
        if isinstance(value, float):
            bound.append(BoundArgument(o.name, 0, value, ()))
            continue
        if value.device != out.device:
            raise OperandError(f"{o.name} is on GPU {value.device} and out on GPU {out.device}; all must be on one")
        output = outputs.get(o.name)
        if output is not None and not value.writable:
            raise OperandError(f"{o.name} is read-only")
        if o.kind == "matrix":
            bound.append(_matrix(o.name, value, out, m, n, row_axis, column_axis, output is not None))
        else:
            outer = batch if groups is None else () if o.kind == "row" else (groups,)
            bound.append(_vector(o.name, o.kind, value, outer, {"row": m, "column": n}.get(o.kind), output))
    return tuple(bound)


def staged(epilogue: Epilogue, bound: tuple[BoundArgument, ...], batching: BatchingName = "strided") -> Epilogue:
    """The epilogue with the majors of its tensors, so that TMA moves what it can; OperandError where it has another."""
    if not any(x.kind == "matrix" for x in epilogue.arguments):
        return epilogue
    if batching != "strided":
        if epilogue.majors:
            named = " and ".join(epilogue.majors)
            raise OperandError(
                f"the epilogue names a major of {named}, but TMA moves no matrices of groups or of a batch with "
                "several strides: leave it out"
            )
        return epilogue
    majors = {x.name: x.major for x in bound if x.major != "any"}
    for name, wanted in epilogue.majors.items():
        if majors.get(name) != wanted:
            raise OperandError(
                f"{name} is {wanted}-major in the epilogue, so that TMA moves it: it must be contiguous along "
                f"{wanted.upper()}, with an address and all other strides (of an output also the extent) that are "
                f"multiples of {TMA_ALIGN} bytes; leave out the major"
            )
    return with_majors(epilogue, majors)


def _matrix(
    name: str, value: TensorView, out: TensorView, m: int, n: int, row_axis: bool, column_axis: bool, output: bool
) -> BoundArgument:
    if output and value.shape != out.shape:
        raise OperandError(f"{name} has shape {value.shape}; it is written as out is, which has {out.shape}")
    strides = broadcast(name, value.shape, value.strides, out.shape)
    spread = replace(value, shape=out.shape, strides=strides)
    outer = len(out.shape) - row_axis - column_axis
    x = matrices(name, spread, out.shape[:outer], m, n, row_axis, column_axis)
    strides = x.row_stride, x.column_stride, collapse(name, out.shape[:outer], x.batch_strides)
    batch = prod(out.shape[:outer])
    if output:
        refuse_overlap(x, out.shape[:outer])
    major = _major(value, (m, n, batch), strides, output)
    return BoundArgument(name, value.ptr, 0.0, strides, major=major, element_bytes=DTYPES[value.dtype].bytes)


def _major(value: TensorView, extents: tuple[int, int, int], strides: tuple[int, int, int], output: bool) -> Major:
    """The contiguous extent of a matrix that TMA can move, or ``any``.

    What TMA stores beside the last whole 16 bytes is zeros, so an output must end with them. It can read one matrix for
    all of a batch, but not one row for all rows.
    """
    if value.dtype not in OUTPUT_DTYPES:
        return "any"
    size = DTYPES[value.dtype].bytes
    (m, n, batch), (row, column, outer) = extents, strides
    majors: tuple[tuple[Major, int, int, int, int], ...] = (("n", n, column, m, row), ("m", m, row, n, column))
    for major, inner, inner_stride, other, stride in majors:
        steps = (stride * size if other > 1 else TMA_ALIGN, outer * size if batch > 1 else TMA_ALIGN)
        if (
            inner > 1
            and inner_stride == 1
            and steps[0] > 0
            and steps[1] >= 0
            and not any(step % TMA_ALIGN or step >= TMA_MAX_STRIDE for step in steps)
            and value.ptr % TMA_ALIGN == 0
            and not (output and inner * size % TMA_ALIGN)
        ):
            return major
    return "any"


def _vector(
    name: str, kind: Kind, value: TensorView, batch: tuple[int, ...], extent: int | None, output: Assignment | None
) -> BoundArgument:
    """A scalar in memory, or a value for each row, column or matrix."""
    tail = () if extent is None else (extent,)
    shape = (*((1,) if kind == "scalar" else batch), *tail) if kind in ("scalar", "batch") else tail
    count = prod(value.shape)
    if kind == "scalar":
        if count != 1:
            raise OperandError(
                f"{name} has shape {value.shape}; it has no index, so it is one element: {name}[n] has N"
            )
        stride = 0
    else:
        own, strides = value.shape, value.strides
        if tail:
            if own[-1:] != tail:
                full = f"{shape}" + (f" or {(*batch, *tail)}" if batch else "")
                raise OperandError(f"{name} has shape {own}; {name}{INDEX[kind]} takes {full}")
            if extent is not None and extent > 1 and strides[-1] != 1:
                raise OperandError(f"{name} has stride {strides[-1]}; its elements must be neighbours: .contiguous()")
            own, strides = own[:-1], strides[:-1]
        if output is not None and own not in (batch, ()):
            raise OperandError(f"{name} has shape {value.shape}; it takes {(*batch, *tail)}")
        stride = collapse(name, batch, broadcast(name, own, strides, batch))
    reset = None
    if output is not None:
        inner = 1
        for each, step in zip(reversed(value.shape), reversed(value.strides), strict=True):
            if each > 1 and step != inner:
                raise OperandError(f"{name} has strides {value.strides}; an output of a reduction must be contiguous")
            inner *= each
        reset = (_IDENTITY[output.role], count)
    steps = () if kind == "scalar" and output is None else (stride,)
    return BoundArgument(name, value.ptr, 0.0, steps, reset, element_bytes=DTYPES[value.dtype].bytes)
