"""An epilogue's arguments: what a caller passes for them, read and typed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from math import copysign
from typing import Any, NamedTuple

from gemmill.library.dtypes import MAX_FLOAT32
from gemmill.library.epilogues.grammar import GIVEN
from gemmill.library.epilogues.parse import PLAIN, parse
from gemmill.library.epilogues.tree import INDEX, OPERAND_DTYPES, OUTPUT_DTYPES, Epilogue, Kind, with_dtypes
from gemmill.library.errors import ExpressionError, KeywordError, OperandError
from gemmill.library.wording import suggest
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
    text: str, given: Mapping[str, Any], stream: int, keywords: Collection[str] = ()
) -> EpilogueArguments:
    """An epilogue and its operands as a call passes them; OperandError names what does not fit.

    ``keywords`` are what else the call takes, one of which may have been meant: KeywordError names it.
    """
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
