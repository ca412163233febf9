"""Fits the arguments of an epilogue to the forms that kernels read, and binds each to its place.

Kernels read the elements of a vector contiguously. For a vector that is not contiguous, gemmill changes the kind of the
operand in the expression. It becomes a single value where the stride is 0, otherwise a matrix that repeats the vector,
since a matrix may have any strides.
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
    BLOCK,
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
    epilogue: Epilogue, values: Mapping[str, Value], a: TensorView, b: TensorView, *, keeps_kinds: bool, shares_d: bool
) -> tuple[Epilogue, Mapping[str, Value]]:
    """Return an epilogue and its values in the forms that kernels support.

    With ``keeps_kinds``, vectors keep their kind, which decides the order of factors. Where groups share D, a vector
    for each group keeps its kind too, since no matrix can repeat it.
    """
    kinds: dict[str, Kind] = {}
    fits = dict(values)
    for o in epilogue.operands:
        value = fits[o.name]
        if isinstance(value, float):
            continue
        if o.name in SCALES:
            scale = scale_kind(o.name, value, a if o.name == "a_scale" else b)
            value = scale[1] if scale and scale[0] == o.kind else value
        kind = o.kind
        if kind in ("column", "row") and not keeps_kinds:
            kind, value = _as_vector(kind, value, len(a.shape) > 1 and len(b.shape) > 1)
            if kind == "matrix" and shares_d and len(value.shape) > 2:
                continue
        fits[o.name] = value
        if kind != o.kind:
            kinds[o.name] = kind
    return with_kinds(epilogue, kinds) if kinds else epilogue, fits


def _as_vector(kind: Kind, value: TensorView, has_both: bool) -> tuple[Kind, TensorView]:
    """Return the kind and the view by which a kernel reads a vector. ``has_both``: D has rows and columns."""
    shape, strides = value.shape, value.strides
    if not shape or shape[-1] < 2 or strides[-1] == 1:
        return kind, value
    if strides[-1] == 0:
        outer = replace(value, shape=shape[:-1], strides=strides[:-1])
        if all(step == 0 for extent, step in zip(outer.shape, outer.strides, strict=True) if extent > 1):
            return "scalar", replace(value, shape=(), strides=())
        return "batch", outer
    if has_both:  # insert an extent of 1 along the other axis
        at = len(shape) if kind == "row" else len(shape) - 1
        shape, strides = (*shape[:at], 1, *shape[at:]), (*strides[:at], 0, *strides[at:])
    return "matrix", replace(value, shape=shape, strides=strides)


def stacked(
    epilogue: Epilogue, values: Mapping[str, Value], d: TensorView, column_axis: bool
) -> tuple[Mapping[str, Value], TensorView] | None:
    """Return the values of an epilogue and D, (..., M, N) or (..., M), with the whole batch as one matrix of more rows.

    None where their strides do not allow it, or where there is a value for each matrix.
    """
    axis = len(d.shape) - column_axis
    rows, columns = d.shape[:axis], d.shape[axis:]
    flat: dict[str, Value] = {}
    for o in epilogue.arguments:
        value = values[o.name]
        if not isinstance(value, float) and o.kind != "scalar":
            inner = tuple(n // BLOCK for n in columns) if o.kind == "block" else columns
            stacked_value = _stacked(o.kind, value, rows, inner)
            is_like_d = isinstance(o, Assignment) and o.kind in ("matrix", "block")
            if stacked_value is None or (is_like_d and value.shape != (*rows, *inner)):
                return None
            value = stacked_value
        flat[o.name] = value
    return flat, replace(d, shape=(prod(rows), *columns), strides=d.strides[axis - 1 :])


def _stacked(kind: Kind, value: TensorView, rows: tuple[int, ...], columns: tuple[int, ...]) -> TensorView | None:
    shape = value.shape
    if kind == "column" and prod(shape[:-1]) == 1:
        return replace(value, shape=shape[-1:], strides=value.strides[-1:])
    if kind not in ("row", "matrix", "block") or (kind == "row" and shape[-1:] != rows[-1:]):
        return None
    columns = () if kind == "row" else columns
    try:
        strides = broadcast("", value.shape, value.strides, (*rows, *columns))
    except OperandError:  # binding raises the error, with the name
        return None
    step = one_stride(rows, strides[: len(rows)])
    if step is None or (kind == "row" and step != 1):
        return None
    return replace(value, shape=(prod(rows), *columns), strides=(step, *strides[len(rows) :]))


_IDENTITY = {"max": 0xFF800000, "min": 0x7F800000, "sum": 0}
"""Bits of the value that each reduction starts from: -inf, inf, 0."""


class BoundArgument(NamedTuple):
    """One operand or output of an epilogue as the launcher writes it: the address and the fields that follow it
    (emitters/epilogue/text.py)."""

    name: str
    address: int
    """0 for a host value."""
    value: float
    """Host value of a scalar."""
    strides: tuple[int, ...]
    """In elements: along M, N (or blocks of N) and the batch for a matrix or scales of blocks; along the batch for a
    vector; empty for a scalar."""
    reset: tuple[int, int] | None = None
    """32-bit word that fills an output before each launch, and how many of them."""
    major: Major = "any"
    """Contiguous extent of a matrix that TMA can move."""

    element_bytes: int = 0
    """Size of one element of a tensor, in bytes."""

    @property
    def transposed(self) -> BoundArgument:
        """The argument with the rows and columns of a matrix exchanged."""
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
    """Bind operands and outputs to their places.

    ``out`` is D; ``row_axis`` and ``column_axis`` say whether its last extents are M and N. ``x[m]`` is (M,) or (...,
    M), ``x[n]`` is (N,) or (..., N) with the N of D, ``x[batch]`` is (...), ``x[m, n]`` broadcasts to D; an output
    matrix has D's shape. With ``groups``, D is one matrix that this many groups of rows share: the groups take the
    place of the batch, and ``x[m]`` is (M,).

    Raises:
        OperandError: an argument does not fit.
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
            raise OperandError(
                f"{o.name} is on GPU {value.device} and out is on GPU {out.device}; all must be on one GPU"
            )
        output = outputs.get(o.name)
        if output is not None and not value.writable:
            raise OperandError(f"{o.name} is read-only: pass writable memory")
        if o.kind == "matrix":
            bound.append(_matrix(o.name, value, out, m, n, row_axis, column_axis, output is not None))
        elif o.kind == "block":
            blocks = replace(out, shape=(*out.shape[:-1], n // BLOCK))
            if value.shape != blocks.shape:
                raise OperandError(f"{o.name} has shape {value.shape}; {o.name}{INDEX[o.kind]} must be {blocks.shape}")
            scales = _matrix(o.name, value, blocks, m, n // BLOCK, row_axis, column_axis, True)
            bound.append(scales._replace(major="any"))
        else:
            outer = batch if groups is None else () if o.kind == "row" else (groups,)
            bound.append(_vector(o.name, o.kind, value, outer, {"row": m, "column": n}.get(o.kind), output))
    return tuple(bound)


def staged(epilogue: Epilogue, bound: tuple[BoundArgument, ...], batching: BatchingName = "strided") -> Epilogue:
    """Return the epilogue with the majors of its tensors, so that kernels can move them with TMA.

    Raises:
        OperandError: the expression names a major that a tensor does not have.
    """
    if not any(x.kind == "matrix" for x in epilogue.arguments):
        return epilogue
    if batching != "strided":
        if epilogue.majors:
            named = " and ".join(epilogue.majors)
            raise OperandError(
                f"the epilogue names a major of {named}, but TMA cannot move matrices of groups or of a batch with "
                "several strides: leave out the major"
            )
        return epilogue
    majors = {x.name: x.major for x in bound if x.major != "any"}
    for name, major in epilogue.majors.items():
        if majors.get(name) != major:
            raise OperandError(
                f"{name} is {major}-major in the epilogue, so TMA must be able to move it: it must be contiguous "
                f"along {major.upper()}, and its address and other strides (and the extent of an output) must be "
                f"multiples of {TMA_ALIGN} bytes; otherwise leave out the major"
            )
    return with_majors(epilogue, majors)


def _matrix(
    name: str, value: TensorView, out: TensorView, m: int, n: int, row_axis: bool, column_axis: bool, output: bool
) -> BoundArgument:
    if output and value.shape != out.shape:
        raise OperandError(f"{name} has shape {value.shape}; it must have the shape of out, {out.shape}")
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
    """Return the contiguous extent of a matrix that TMA can move, or ``any``.

    TMA pads the last 16 bytes of a row of an output with zeros, so the rows of an output must fill them. TMA can read
    one matrix for the whole batch, but cannot read one row for all rows.
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
    """Bind a scalar in memory, or a vector with a value for each row, column or matrix."""
    tail = () if extent is None else (extent,)
    shape = (*((1,) if kind == "scalar" else batch), *tail) if kind in ("scalar", "batch") else tail
    count = prod(value.shape)
    if kind == "scalar":
        if count != 1:
            raise OperandError(
                f"{name} has shape {value.shape}; without an index it must have one element: write {name}[n] for a "
                "vector of N"
            )
        stride = 0
    else:
        extents, strides = value.shape, value.strides
        if tail:
            if extents[-1:] != tail:
                full = f"{shape}" + (f" or {(*batch, *tail)}" if batch else "")
                raise OperandError(f"{name} has shape {extents}; {name}{INDEX[kind]} must be {full}")
            if extent is not None and extent > 1 and strides[-1] != 1:
                raise OperandError(f"{name} has stride {strides[-1]}; it must be contiguous: pass {name}.contiguous()")
            extents, strides = extents[:-1], strides[:-1]
        if output is not None and extents not in (batch, ()):
            raise OperandError(f"{name} has shape {value.shape}; it must be {(*batch, *tail)}")
        stride = collapse(name, batch, broadcast(name, extents, strides, batch))
    reset = None
    if output is not None:
        inner = 1
        for size, step in zip(reversed(value.shape), reversed(value.strides), strict=True):
            if size > 1 and step != inner:
                raise OperandError(
                    f"{name} has strides {value.strides}; an output of a reduction must be contiguous: pass a "
                    "contiguous tensor"
                )
            inner *= size
        reset = (_IDENTITY[output.role], count)
    steps = () if kind == "scalar" and output is None else (stride,)
    return BoundArgument(name, value.ptr, 0.0, steps, reset, element_bytes=DTYPES[value.dtype].bytes)
