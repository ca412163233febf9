"""Reads and types the arguments of an epilogue."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from math import copysign
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTYPES, MAX_FLOAT32
from gemmill.library.epilogues.grammar import GIVEN, SCALES
from gemmill.library.epilogues.parse import PLAIN, parse
from gemmill.library.epilogues.tree import (
    INDEX,
    OPERAND_DTYPES,
    SCALE_DTYPES,
    Epilogue,
    Kind,
    with_dtypes,
)
from gemmill.library.errors import ExpressionError, KeywordError, OperandError
from gemmill.library.wording import suggest
from gemmill.runtime.operands.tensors import TensorView, view

Value = TensorView | float
"""A tensor, or the host value of a scalar."""


def read_epilogue(text: str) -> Epilogue:
    """Parse the epilogue of a caller; OperandError points at the place of a mistake."""
    if not isinstance(text, str):
        raise OperandError(f"epilogue is {text!r:.80}; it must be a str such as 'd = silu(acc + bias[n])'")
    try:
        return parse(text)
    except ExpressionError as error:
        raise OperandError(f"epilogue: {error}\n  {text!r}\n  {'':{error.column + 1}}^") from None


class EpilogueArguments(NamedTuple):
    """An epilogue, typed by its operands, and the arguments of the call."""

    epilogue: Epilogue
    values: Mapping[str, Value]
    """Operands, then outputs, by name."""
    text: str | None
    """The epilogue as the caller wrote it; None where the call has none, so that C may be left out."""

    @property
    def addresses(self) -> tuple[int, ...]:
        """Addresses of the values; 0 for host values."""
        return tuple(0 if isinstance(value, float) else value.ptr for value in self.values.values())

    @property
    def key(self) -> Hashable:
        """Everything that a prepared call depends on; of addresses only the alignment."""
        layouts = (  # of numbers the sign too: 0.0 and -0.0 are equal
            (value, copysign(1, value)) if isinstance(value, float) else value.layout for value in self.values.values()
        )
        return (self.text, *layouts)

    @property
    def outputs(self) -> frozenset[str]:
        """Names of the tensors that the epilogue writes, other than D."""
        return frozenset(output.name for output in self.epilogue.outputs)


NO_ARGUMENTS = EpilogueArguments(PLAIN, {}, None)
"""Arguments of a call without an epilogue."""


def read_arguments(
    text: str, arguments: Mapping[str, Any], stream: int, keywords: Collection[str] = ()
) -> EpilogueArguments:
    """Read an epilogue and its operands from the arguments of a call.

    ``keywords`` are the other keywords of the call: KeywordError suggests one where the name of an operand looks like
    it.

    Raises:
        OperandError: an argument does not fit.
    """
    epilogue = read_epilogue(text)
    values = read_values(epilogue, arguments, stream, keywords)
    return EpilogueArguments(typed(epilogue, values), values, text)


def read_values(
    epilogue: Epilogue, arguments: Mapping[str, Any], stream: int, keywords: Collection[str] = ()
) -> dict[str, Value]:
    """Return the operands and outputs that a call passes, in the order in which a kernel takes them."""
    check_names(epilogue, arguments, keywords)
    names_and_kinds: list[tuple[str, Kind]] = [(o.name, o.kind) for o in epilogue.operands]
    names_and_kinds += [(o.name, o.kind) for o in epilogue.outputs]
    values: dict[str, Value] = {}
    for name, kind in names_and_kinds:
        value = arguments[name]
        if is_number(value) and kind == "scalar" and not any(o.name == name for o in epilogue.outputs):
            if not abs(value) <= MAX_FLOAT32 and value == value and abs(value) != float("inf"):
                raise OperandError(f"{name} is {value}; it must fit in a float32, at most {MAX_FLOAT32:.4g}")
            values[name] = float(value)
        elif is_number(value):
            raise OperandError(
                f"{name} is {value!r}, but {name}{INDEX[kind]} in the epilogue must be a tensor in GPU memory"
            )
        else:
            values[name] = value if isinstance(value, TensorView) else view(value, name, stream)
    return values


def check_names(epilogue: Epilogue, arguments: Mapping[str, Any], keywords: Collection[str] = ()) -> None:
    """Raise KeywordError for an argument that an epilogue does not use, and OperandError for one that is missing or
    None. ``keywords`` are as in :func:`read_arguments`."""
    names = [*(x.name for x in epilogue.operands), *(x.name for x in epilogue.outputs)]
    for name in arguments:
        if name not in names:
            hint = suggest(name, names) or suggest(name, keywords)
            hint = hint or f"; its operands are {', '.join(names) or 'none'}"
            raise KeywordError(f"{name} is passed, but the epilogue `{epilogue}` does not use it{hint}")
    for name in names:
        if arguments.get(name) is None:
            raise _missing_error(name, epilogue)


def is_number(value: object) -> bool:
    """Whether a value is a Python number, which may be a scalar operand."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _missing_error(name: str, epilogue: Epilogue) -> OperandError:
    """Return the error for an operand of the epilogue that the call does not pass. The caller may have misspelt a name
    that needs no argument, such as ``acc``."""
    defined_names = (*GIVEN, *(x.name for x in epilogue.assignments if x.role == "local"))
    return OperandError(
        f"{name} is missing: the epilogue `{epilogue}` needs {name}={suggest(name, defined_names) or ';'} "
        f"names that need no argument are {', '.join(defined_names)}"
    )


def typed(epilogue: Epilogue, values: Mapping[str, Value]) -> Epilogue:
    """Return the epilogue with the element types of the tensors, where it does not name them."""
    dtypes = {}
    named = {o.name: o.dtype for o in epilogue.arguments}
    allowed = {name: SCALE_DTYPES if name in SCALES else OPERAND_DTYPES for name in named}
    allowed |= {o.name: o.dtypes for o in epilogue.outputs}
    for name, value in values.items():
        if not isinstance(value, TensorView):
            dtype = DTYPES[named[name]]
            if dtype.is_integer and not (value.is_integer() and dtype.least <= value <= dtype.largest):
                raise OperandError(
                    f"{name} is {value}, but the epilogue says {name}.{dtype.name}: pass a whole number from "
                    f"{dtype.least:.0f} to {dtype.largest:.0f}"
                )
            continue
        if value.dtype not in allowed[name]:
            choices = ", ".join(allowed[name])
            raise OperandError(f"{name} is {value.dtype}; it must be one of {choices}: pass {name}.float()")
        if named[name] not in (OPERAND_DTYPES[0], value.dtype):
            raise OperandError(
                f"{name} is {value.dtype}, but the epilogue says {name}.{named[name]}: leave out the type there"
            )
        dtypes[name] = value.dtype
    return with_dtypes(epilogue, dtypes)
