"""What a caller passes to an epilogue, bound to the place where a kernel reads or writes it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import combinations
from math import copysign, prod
from typing import Any, NamedTuple

from gemmill.library.arch import TMA_MAX_STRIDE
from gemmill.library.config.domains import suggest
from gemmill.library.dtypes import DTYPES, MAX_FLOAT32
from gemmill.library.epilogues.parse import PLAIN, parse
from gemmill.library.epilogues.tree import (
    INDEX,
    OPERAND_DTYPES,
    Assignment,
    Epilogue,
    Kind,
    Major,
    with_dtypes,
    with_majors,
)
from gemmill.library.errors import ExpressionError, OperandError
from gemmill.library.legality.resources import TMA_ALIGN
from gemmill.runtime.operands.binding import broadcast, collapse, matrices, refuse_overlap
from gemmill.runtime.operands.tensors import TensorView, view

Value = TensorView | float
"""A tensor, or the host's value of a scalar."""

_IDENTITY = {"max": 0xFF800000, "min": 0x7F800000, "sum": 0}
"""Bits of what a reduction starts from: -inf, inf, 0."""


class Bound(NamedTuple):
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

    @property
    def transposed(self) -> tuple[int, ...]:
        """The strides where the kernel solves the problem with M and N swapped."""
        if len(self.strides) < 3:
            return self.strides
        row, column, batch = self.strides
        return column, row, batch


def read_epilogue(text: str) -> Epilogue:
    """A caller's epilogue; OperandError that points at what is wrong with it."""
    try:
        return parse(text)
    except ExpressionError as error:
        raise OperandError(f"epilogue: {error}\n  {text!r}\n  {'':{error.column + 1}}^") from None


class Passed(NamedTuple):
    """An epilogue, typed by its operands, and what was passed for them."""

    epilogue: Epilogue
    values: Mapping[str, Value]
    """Operands, then outputs, by name."""
    text: str | None
    """The caller's epilogue; None where the call has none, so that C may be left out."""

    @property
    def addresses(self) -> tuple[int, ...]:
        """Addresses of the values; 0 for the host's."""
        return tuple(0 if isinstance(value, float) else value.ptr for value in self.values.values())

    @property
    def key(self) -> Hashable:
        """All that matters for a launch, of addresses their alignment."""
        parts = (
            (v, copysign(1, v))
            if isinstance(v, float)
            else (v.shape, v.strides, v.dtype, v.device, v.writable, v.ptr % TMA_ALIGN)
            for v in self.values.values()
        )
        return (self.text, *parts)

    @property
    def outputs(self) -> frozenset[str]:
        """Names of what is written beside D."""
        return frozenset(output.name for output in self.epilogue.outputs)

    @property
    def may_stack(self) -> bool:
        """Whether a batch that shares B may become one taller matrix: nothing depends on row, matrix or element."""
        extents = {"scalar": 1, "column": 1}
        named = self.epilogue.passed
        values = ((o.kind, self.values[o.name]) for o in named)
        return all(isinstance(v, float) or len(v.shape) <= extents.get(kind, -1) for kind, v in values)


NOTHING = Passed(PLAIN, {}, None)
"""What a call without an epilogue passes."""


def read_passed(text: str | None, given: Mapping[str, Any], stream: int) -> Passed:
    """An epilogue and its operands as a call passes them; OperandError names what does not fit."""
    if text is None:
        if given:
            name = next(iter(given))
            raise TypeError(f"unexpected argument {name!r}; an epilogue has operands, as in epilogue='d = acc + x[n]'")
        return NOTHING
    epilogue = read_epilogue(text)
    values = read_operands(epilogue, given, stream)
    return Passed(typed(epilogue, values), values, text)


def read_operands(epilogue: Epilogue, given: Mapping[str, Any], stream: int) -> dict[str, Value]:
    """The operands and outputs that a call passes, in the order in which a kernel takes them."""
    wanted: list[tuple[str, Kind]] = [(o.name, o.kind) for o in epilogue.operands]
    wanted += [(o.name, o.kind) for o in epilogue.outputs]
    names = [name for name, _ in wanted]
    for name in given:
        if name not in names:
            hint = suggest(name, names) or f"; it names {', '.join(names) or 'no operand'}"
            raise OperandError(f"{name} is passed, but the epilogue `{epilogue}` does not name it{hint}")
    values: dict[str, Value] = {}
    for name, kind in wanted:
        value = given.get(name)
        if value is None:
            raise OperandError(f"{name} is missing: the epilogue `{epilogue}` needs {name}=")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and kind == "scalar" and not any(o.name == name for o in epilogue.outputs):
            if not abs(value) <= MAX_FLOAT32 and value == value and abs(value) != float("inf"):
                raise OperandError(f"{name} is {value}; kernels take a float32, at most {MAX_FLOAT32:.4g}")
            values[name] = float(value)
        elif is_number:
            raise OperandError(f"{name} is {value!r}, but {name}{INDEX[kind]} is a tensor in GPU memory")
        else:
            values[name] = view(value, name, stream)
    return values


def typed(epilogue: Epilogue, values: Mapping[str, Value]) -> Epilogue:
    """The epilogue with the element types of the tensors, where it names none."""
    dtypes = {}
    named = {o.name: o.dtype for o in epilogue.passed}
    reductions = {o.name for o in epilogue.outputs if o.is_reduction}
    for name, value in values.items():
        if not isinstance(value, TensorView):
            continue
        if value.dtype not in OPERAND_DTYPES or (name in reductions and value.dtype != "f32"):
            allowed = "f32" if name in reductions else ", ".join(OPERAND_DTYPES)
            raise OperandError(f"{name} is {value.dtype}; here it may be {allowed}")
        if named[name] not in (OPERAND_DTYPES[0], value.dtype):
            raise OperandError(f"{name} is {value.dtype}, but {name}.{named[name]} in the epilogue: leave out the type")
        dtypes[name] = value.dtype
    return with_dtypes(epilogue, dtypes)


def staged(epilogue: Epilogue, bound: tuple[Bound, ...]) -> Epilogue:
    """The epilogue with the majors of its tensors, so that TMA moves what it can; OperandError where it has another."""
    majors = {x.name: x.major for x in bound if x.major != "any"}
    for name, wanted in epilogue.majors.items():
        if majors.get(name) != wanted:
            raise OperandError(
                f"{name} is {wanted}-major in the epilogue, so that TMA moves it: it must be contiguous along "
                f"{wanted.upper()}, with an address and all other strides (of an output also the extent) that are "
                f"multiples of {TMA_ALIGN} bytes; leave out the major"
            )
    return with_majors(epilogue, majors)


def bind_operands(
    epilogue: Epilogue,
    values: Mapping[str, Value],
    out: TensorView,
    row_axis: bool,
    column_axis: bool,
    groups: int | None = None,
) -> tuple[Bound, ...]:
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
    for o in epilogue.passed:
        value = values[o.name]
        if isinstance(value, float):
            bound.append(Bound(o.name, 0, value, ()))
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


def refuse_shared_memory(out: TensorView, passed: Passed) -> None:
    """OperandError where an end of D or of an output lies in another: blocks would write there in any order.

    Views that only interleave, as columns of one matrix do, pass; so do those that meet elsewhere than at an end.
    """
    if not passed.values:  # every rebinding asks
        return
    written: list[tuple[str, Value]] = [
        ("out", out),
        *((o.name, passed.values[o.name]) for o in passed.epilogue.outputs),
    ]
    tensors = ((name, x) for name, x in written if isinstance(x, TensorView) and 0 not in x.shape)
    for (one, x), (other, y) in combinations(tensors, 2):
        if any(_holds(x, end) for end in _ends(y)) or any(_holds(y, end) for end in _ends(x)):
            lies = " and ".join(f"{n} from {_ends(t)[0]:#x} to {_ends(t)[1]:#x}" for n, t in ((one, x), (other, y)))
            raise OperandError(
                f"{one} and {other} share memory, {lies}, and both are written: pass other memory for one"
            )


def _ends(x: TensorView) -> tuple[int, int]:
    """Addresses of the first and the last byte of a tensor that has elements."""
    before, behind = x.reach
    return x.ptr - before, x.ptr + behind - 1


def _holds(x: TensorView, address: int) -> bool:
    """Whether a byte belongs to an element. Where each stride reaches beyond all shorter ones, as D's must, no byte is
    missed: along the longest stride first, one index alone can reach it."""
    first, last = _ends(x)
    if not first <= address <= last:
        return False
    size = DTYPES[x.dtype].bytes
    steps = [(1, size), *((abs(stride) * size, extent) for extent, stride in zip(x.shape, x.strides, strict=True))]
    rest = address - first
    for step, extent in sorted(steps, reverse=True):
        if step:
            rest -= min(rest // step, extent - 1) * step
    return rest == 0


def _matrix(
    name: str, value: TensorView, out: TensorView, m: int, n: int, row_axis: bool, column_axis: bool, output: bool
) -> Bound:
    if output and value.shape != out.shape:
        raise OperandError(f"{name} has shape {value.shape}; it is written as out is, which has {out.shape}")
    spread = replace(value, shape=out.shape, strides=broadcast(name, value, out.shape))
    outer = len(out.shape) - row_axis - column_axis
    x = matrices(name, spread, out.shape[:outer], m, n, row_axis, column_axis)
    strides = x.row_stride, x.column_stride, x.batch_stride
    batch = prod(out.shape[:outer])
    if output:
        refuse_overlap(x, batch)
    major = _major(value, (m, n, batch), strides, output)
    return Bound(name, value.ptr, 0.0, strides, major=major)


def _major(value: TensorView, extents: tuple[int, int, int], strides: tuple[int, int, int], output: bool) -> Major:
    """The contiguous extent of a matrix that TMA can move, or ``any``.

    What TMA stores beside the last whole 16 bytes is zeros, so an output must end with them. It can read one matrix for
    all of a batch, but not one row for all rows.
    """
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
) -> Bound:
    """A scalar in memory, or a value for each row, column or matrix."""
    tail = () if extent is None else (extent,)
    shape = (*((1,) if kind == "scalar" else batch), *tail) if kind in ("scalar", "batch") else tail
    count = prod(value.shape)
    if kind == "scalar":
        if count != 1:
            raise OperandError(f"{name} has shape {value.shape}; it has no index, so it is one element")
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
        outer = replace(value, shape=own, strides=strides)
        if output is not None and own not in (batch, ()):
            raise OperandError(f"{name} has shape {value.shape}; it takes {(*batch, *tail)}")
        stride = collapse(name, batch, broadcast(name, outer, batch))
    reset = None
    if output is not None:
        inner = 1
        for each, step in zip(reversed(value.shape), reversed(value.strides), strict=True):
            if each > 1 and step != inner:
                raise OperandError(f"{name} has strides {value.strides}; an output of a reduction must be contiguous")
            inner *= each
        reset = (_IDENTITY[output.role], count)
    return Bound(name, value.ptr, 0.0, () if kind == "scalar" and output is None else (stride,), reset)
