"""An epilogue's arguments: what a caller passes for them, read and typed, fitted to how kernels read them, and bound to
the place where a kernel reads or writes each.

Kernels read a vector's elements as neighbours. Where they are not, the call's expression says what serves it: one value
for all where the stride is 0, else a matrix that repeats the vector, which is read at any strides.

Scales of whole operands, of rows of A and of columns of B are factors of the sums, and so operands of the epilogue:
``a_scale`` and ``b_scale`` are what ``a * a_scale`` and ``b * b_scale`` would broadcast, such that a row of A or a
column of B has one value. An expression may say itself where they stand; else they multiply each sum.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import copysign, prod
from typing import Any, NamedTuple

from gemmill.library.arch import TMA_MAX_STRIDE
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import DTYPES, MAX_FLOAT32
from gemmill.library.epilogues.grammar import GIVEN, SCALES
from gemmill.library.epilogues.parse import PLAIN, parse
from gemmill.library.epilogues.tree import (
    INDEX,
    OPERAND_DTYPES,
    OUTPUT_DTYPES,
    Assignment,
    Epilogue,
    Kind,
    Major,
    scaled,
    with_dtypes,
    with_kinds,
    with_majors,
)
from gemmill.library.epilogues.tree import Operand as EpilogueOperand
from gemmill.library.errors import ExpressionError, KeywordError, OperandError
from gemmill.library.input.keywords import unexpected
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import is_mixed, upconverts_a
from gemmill.library.wording import suggest
from gemmill.runtime.operands.matrices import (
    block_shapes,
    broadcast,
    collapse,
    has_groups,
    matrices,
    one_stride,
    refuse_overlap,
)
from gemmill.runtime.operands.tensors import TensorView, view

Value = TensorView | float
"""A tensor, or the host's value of a scalar."""


def read_epilogue(text: str) -> Epilogue:
    """A caller's epilogue; OperandError that points at what is wrong with it."""
    if not isinstance(text, str):
        raise OperandError(f"epilogue is {text!r:.80}; it must be a text such as 'd = silu(acc + bias[n])'")
    try:
        return parse(text)
    except ExpressionError as error:
        raise OperandError(f"epilogue: {error}\n  {text!r}\n  {'':{error.column + 1}}^") from None


class EpilogueArguments(NamedTuple):
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
        layouts = (  # of numbers the sign too: 0.0 and -0.0 are equal
            (value, copysign(1, value)) if isinstance(value, float) else value.layout for value in self.values.values()
        )
        return (self.text, *layouts)

    @property
    def outputs(self) -> frozenset[str]:
        """Names of what is written beside D."""
        return frozenset(output.name for output in self.epilogue.outputs)


NO_ARGUMENTS = EpilogueArguments(PLAIN, {}, None)
"""What a call without an epilogue passes."""


def read_arguments(
    text: str | None, given: Mapping[str, Any], stream: int, keywords: Collection[str] = ()
) -> EpilogueArguments:
    """An epilogue and its operands as a call passes them; OperandError names what does not fit.

    ``keywords`` are what else the call takes, one of which may have been meant: KeywordError names it.
    """
    if text is None:
        if given:
            raise unexpected(next(iter(given)), keywords, "an epilogue has operands, as in epilogue='d = acc + x[n]'")
        return NO_ARGUMENTS
    epilogue = read_epilogue(text)
    values = read_values(epilogue, given, stream, keywords)
    return EpilogueArguments(typed(epilogue, values), values, text)


def read_values(
    epilogue: Epilogue, given: Mapping[str, Any], stream: int, keywords: Collection[str] = ()
) -> dict[str, Value]:
    """The operands and outputs that a call passes, in the order in which a kernel takes them."""
    wanted: list[tuple[str, Kind]] = [(o.name, o.kind) for o in epilogue.operands]
    wanted += [(o.name, o.kind) for o in epilogue.outputs]
    names = [name for name, _ in wanted]
    for name in given:
        if name not in names:
            hint = suggest(name, (*names, *keywords)) or f"; it names {', '.join(names) or 'no operand'}"
            raise KeywordError(f"{name} is passed, but the epilogue `{epilogue}` does not name it{hint}")
    values: dict[str, Value] = {}
    for name, kind in wanted:
        value = given.get(name)
        if value is None:
            raise _missing(name, epilogue)
        if is_number(value) and kind == "scalar" and not any(o.name == name for o in epilogue.outputs):
            if not abs(value) <= MAX_FLOAT32 and value == value and abs(value) != float("inf"):
                raise OperandError(f"{name} is {value}; kernels take a float32, at most {MAX_FLOAT32:.4g}")
            values[name] = float(value)
        elif is_number(value):
            raise OperandError(f"{name} is {value!r}, but {name}{INDEX[kind]} is a tensor in GPU memory")
        else:
            values[name] = value if isinstance(value, TensorView) else view(value, name, stream)
    return values


def is_number(value: object) -> bool:
    """Whether a value is a number of Python's, as a scalar may be."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _missing(name: str, epilogue: Epilogue) -> OperandError:
    """The error for a name of an epilogue that the call does not pass: what was meant may be one that nobody passes."""
    known = (*GIVEN, *(x.name for x in epilogue.assignments if x.role == "local"))
    return OperandError(
        f"{name} is missing: the epilogue `{epilogue}` needs {name}={suggest(name, known) or ';'} "
        f"names that are not passed are {', '.join(known)}"
    )


def typed(epilogue: Epilogue, values: Mapping[str, Value]) -> Epilogue:
    """The epilogue with the element types of the tensors, where it names none."""
    dtypes = {}
    named = {o.name: o.dtype for o in epilogue.arguments}
    allowed = dict.fromkeys(named, OPERAND_DTYPES)
    allowed |= {o.name: ("f32",) if o.is_reduction else OUTPUT_DTYPES for o in epilogue.outputs}
    for name, value in values.items():
        if not isinstance(value, TensorView):
            continue
        if value.dtype not in allowed[name]:
            may = ", ".join(allowed[name])
            raise OperandError(f"{name} is {value.dtype}; here it may be {may}: pass {name}.float()")
        if named[name] not in (OPERAND_DTYPES[0], value.dtype):
            raise OperandError(f"{name} is {value.dtype}, but {name}.{named[name]} in the epilogue: leave out the type")
        dtypes[name] = value.dtype
    return with_dtypes(epilogue, dtypes)


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


def scale_kind(name: str, scale: TensorView, operand: TensorView) -> tuple[Kind, TensorView] | None:
    """What a scale of an operand has one value for, and the scale without the extents of 1 along which it broadcasts;
    None where that is neither the operand, nor a matrix of its batch, nor a row of A or a column of B."""
    shape, is_matrix = scale.shape, len(operand.shape) > 1
    if is_matrix and name == "a_scale" and shape[-2:] == (operand.shape[-2], 1):
        return "row", _without(scale, -1)
    if is_matrix and name == "b_scale" and shape[-1:] == operand.shape[-1:] and shape[-2:-1] in ((), (1,)):
        return "column", scale if len(shape) == 1 else _without(scale, -2)
    if prod(shape) == 1:
        return "scalar", scale
    return ("batch", _without(_without(scale, -1), -1)) if shape[-2:] == (1, 1) else None


def _without(tensor: TensorView, axis: int) -> TensorView:
    """A view without an extent of 1."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    del shape[axis], strides[axis]
    return replace(tensor, shape=tuple(shape), strides=tuple(strides))


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


def staged(epilogue: Epilogue, bound: tuple[BoundArgument, ...]) -> Epilogue:
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


def kinds_of_scales(
    tensors: Mapping[str, TensorView], numbers: Mapping[str, float], named: Mapping[str, Kind], batch_invariant: bool
) -> dict[str, Kind]:
    """What each scale that is a factor of the sums has one value for, a_scale first; the others are of blocks or of
    groups along K, and not of the epilogue.

    ``numbers`` are scales of the host, ``named`` those that the expression names itself, with their kinds. OperandError
    names a scale that is of neither sort.
    """
    if "addresses" in tensors:
        return {}
    a, b = tensors["a"], tensors["b"]
    given = {name: tensors[name] for name in SCALES if name in tensors and name not in named}
    forms = {name: scale_kind(name, scale, tensors[name[0]]) for name, scale in given.items()}
    if is_mixed(a.dtype, b.dtype):
        narrow = "a" if upconverts_a(a.dtype, b.dtype) else "b"
        grouped = narrow if has_groups(narrow, tensors) else ""
        forms = {name: x for name, x in forms.items() if name[0] != grouped and x is not None}
    elif {name: scale.shape[-2:] for name, scale in given.items()} == block_shapes(a, b) and (
        None in forms.values() or {scale.dtype for scale in given.values()} in ({dtype} for dtype in BLOCK_SCALES)
    ):
        return {}
    for name, found in forms.items():
        if found is None:
            raise _refused(name, tensors)
    if batch_invariant and "a_scale" in given:
        _refuse_one_row(given["a_scale"], forms.get("a_scale"))
    kinds = {name: found[0] for name, found in forms.items() if found}
    all_kinds: dict[str, Kind] = {**dict.fromkeys(numbers, "scalar"), **kinds, **named}
    return {name: all_kinds[name] for name in SCALES if name in all_kinds}


@lru_cache(1024)
def with_scales(text: str | None, kinds: tuple[tuple[str, Kind], ...], has_c: bool) -> str:
    """An epilogue whose sums are multiplied by scales, but by those that it names itself; None: the plain one."""
    linear = "d = alpha * acc + beta * c" if has_c else "d = alpha * acc"
    epilogue = read_epilogue(linear if text is None else text)
    named = {operand.name for operand in epilogue.operands}
    factors = [EpilogueOperand(name, kind, "f32") for name, kind in kinds if name not in named]
    if epilogue.gated and any(factor.kind == "column" for factor in factors):
        raise OperandError(
            f"b_scale has one for each column of b, and the epilogue `{epilogue}` pairs columns: pass those of gate "
            "and of up by names of their own, as in epilogue='d = silu(gate * g[n]) * (up * u[n])', "
            "g=b_scale[..., 0::2].contiguous(), u=b_scale[..., 1::2].contiguous()"
        )
    return str(scaled(epilogue, factors))


def named_scales(text: str) -> dict[str, Kind]:
    """The scales that an epilogue names itself, and what each has one value for."""
    return {operand.name: operand.kind for operand in read_epilogue(text).operands if operand.name in SCALES}


def _refuse_one_row(scale: TensorView, found: tuple[Kind, TensorView] | None) -> None:
    """OperandError where M decides whether a scale is of a row or of all rows, and with it the kernel."""
    if found and found[0] in ("scalar", "batch") and len(scale.shape) > 1:
        raise OperandError(
            f"batch_invariant: a_scale has shape {scale.shape}, which is that of a row where M is 1: pass one for "
            "all rows as a_scale.reshape(()), or one for each row"
        )


def _refused(name: str, tensors: Mapping[str, TensorView]) -> OperandError:
    """What to say of a scale that scales neither blocks nor all of a row or column."""
    own, operand, blocks = tensors[name].shape, tensors[name[0]].shape, block_shapes(tensors["a"], tensors["b"])
    each = (operand[-2], 1) if name == "a_scale" else (1, operand[-1])
    other = "b_scale" if name == "a_scale" else "a_scale"
    of = "row" if name == "a_scale" else "column"
    says = f"one value, or {each}: one for each {of}" if len(operand) > 1 else "one value"
    if own[-2:] == blocks[name]:
        way = f"these are of blocks, beside which {other} is of blocks too: {blocks[other]}"
    elif own == operand[-2:-1]:
        way = f"pass {name}.unsqueeze(-1)"
    elif own[-2:] == each[::-1]:
        way = f"pass {name}.mT"
    else:
        way = f"of blocks it is {blocks[name]}, and {other} {blocks[other]}"
    return OperandError(f"{name} has shape {own}; it must be {says}. {way[0].upper()}{way[1:]}")
