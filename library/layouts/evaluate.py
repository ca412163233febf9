"""Evaluation of layout expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import algebra, atoms, values
from gemmill.library.layouts.functions import FUNCTIONS, Function, compose
from gemmill.library.layouts.layout import Composed, Layout, Swizzle
from gemmill.library.layouts.syntax import Call, Composition, Everything, Name, Node, Number, Pair, Tuple, parse
from gemmill.library.layouts.values import Value
from gemmill.library.wording import suggest

_SWIZZLES = ("Sw", "Swizzle")
_MAJORS = ("GMMA::Major::K", "GMMA::Major::MN")
_NAMES = (*FUNCTIONS, *atoms.MMA_EXAMPLES, *atoms.COPY_NAMES, *atoms.SHARED_NAMES, *_SWIZZLES)


def evaluate(text: str) -> Value:
    """The value of an expression.

    Raises:
        LayoutError: the text is not an expression, or it has no value; the column points at the error.
    """
    return _value(parse(text))


@contextmanager
def _at(node: Node) -> Iterator[None]:
    """Set the column of an error without one to that of a node."""
    try:
        yield
    except LayoutError as error:
        if error.column is None:
            error.column = node.column
        raise


def _value(node: Node) -> Value:
    match node:
        case Number(value):
            return value
        case Everything():
            return None
        case Tuple(items):
            return tuple(map(_value, items))
        case Pair(shape, stride):
            return _layout(shape, stride, node)
        case Name():
            return _named(node)
        case Composition():
            return _composed(node)
        case Call():
            return _evaluate_call(node)


def _layout(shape: Node, stride: Node, node: Node) -> Layout:
    parts = []
    for role, part in (("a shape", shape), ("strides", stride)):
        value = _value(part)
        with _at(part):
            if not values.is_ints(value):
                raise LayoutError(f"{values.text(value)} is not {role}; it must be an integer or a tuple of integers")
        parts.append(value)
    with _at(shape):
        values.as_shape(parts[0])  # type: ignore[arg-type]
    with _at(node):
        return Layout(*parts)  # type: ignore[arg-type]


def _named(node: Name) -> Value:
    """The atom, swizzle, or CUTLASS template with a name."""
    name, parameters = node.name.removeprefix("cute::"), node.parameters or ()
    bare = name.removeprefix("SM90::").removeprefix("GMMA::")
    with _at(node):
        if function := FUNCTIONS.get(name):
            raise LayoutError(f"{name} is a function; call it: {function.signature(name)}")
        if name in _SWIZZLES:
            numbers = [*map(_value, parameters)]
            if len(numbers) != 3 or not all(isinstance(number, int) for number in numbers):
                raise LayoutError(f"a swizzle must be {name}<B,M,S> with three integers, for example Sw<3,4,3>")
            return Swizzle(*cast("list[int]", numbers))
        if name == "Copy_Atom":
            return _copy(node, *_words(parameters, 2, "Copy_Atom<SM75_U32x4_LDSM_N, half_t>"))
        if bare in atoms.SHARED_NAMES:
            return atoms.shared_atom(bare, *_words(parameters, 1, f"{bare}<half_t>"))
        if (mma := atoms.mma_atom(name)) is not None:
            _check_parameters(mma, parameters)
            return mma
        return _copy(node, name, *_words(parameters, len(parameters), ""))


def _words(parameters: Sequence[Node], count: int, form: str) -> list[str]:
    """The names in angle brackets."""
    if len(parameters) != count or not all(isinstance(word, Name) for word in parameters):
        raise LayoutError(f"angle brackets must contain names here{form and f', for example {form}'}")
    return [word.name for word in parameters if isinstance(word, Name)]


def _check_parameters(mma: atoms.MmaAtom, parameters: Sequence[Node]) -> None:
    """Reject template parameters that CUTLASS's template of the MMA does not have."""
    for word in _words(parameters, len(parameters), ""):
        if mma.name == "UniversalFMA":
            atoms.type_bits(word)
        elif mma.thread_ids.size != 128 or word.removeprefix("SM90::") not in _MAJORS:
            raise LayoutError(f"{mma} has no template parameter {word}; remove it")


def _copy(node: Name, name: str, *type_names: str) -> Value:
    copy = atoms.copy_atom(name, type_names[0] if type_names else None)
    if copy is None:
        raise LayoutError(
            f"{name!r} is not a function, atom or swizzle{suggest(name, _NAMES)}"
            f"{'' if suggest(name, _NAMES) else '; docs/layouts.md lists all of them'}"
        )
    return copy


def _composed(node: Composition) -> Value:
    """``a o b o c``, evaluated from the left. An integer after a swizzle is the offset of the next term."""
    terms = [_value(term) for term in node.terms]
    result, rest = terms[0], [*zip(terms[1:], node.terms[1:], strict=True)]
    with _at(node):
        while rest:
            inner, at = rest.pop(0)
            offset = 0
            if isinstance(result, Swizzle) and isinstance(at, Number) and rest:
                offset, (inner, at) = at.value, rest.pop(0)
            with _at(node.terms[0]):
                outer = values.checked(result, "outer", "the left side of 'o'")
            with _at(at):
                tiler = (
                    inner if isinstance(inner, Composed) else values.checked(inner, "tiler", "the right side of 'o'")
                )
            result = compose(outer, tiler, offset)
    return result


def _evaluate_call(node: Call) -> Value:
    name = node.called.name.removeprefix("cute::") if isinstance(node.called, Name) else ""
    arguments = [_value(argument) for argument in node.arguments]
    if function := FUNCTIONS.get(name):
        with _at(node):
            return function.call(*_checked(name, function, node, arguments))
    called = _value(node.called)
    with _at(node):
        return _applied(called, arguments, node)


def _checked(name: str, function: Function, node: Call, arguments: list[Value]) -> list[Value]:
    """The arguments of a function; LayoutError if their number or the kind of one is wrong."""
    if not function.parameters:
        if not arguments:
            raise LayoutError(f"{name} has no arguments; expected {function.signature(name)}")
        return arguments
    if not function.required <= len(arguments) <= len(function.parameters):
        raise LayoutError(
            f"{name} has {len(arguments)} argument{'s' * (len(arguments) != 1)}; expected {function.signature(name)}"
        )
    for argument, (parameter, kind), at in zip(arguments, function.parameters, node.arguments, strict=False):
        with _at(at):
            values.checked(argument, kind, f"{parameter} of {function.signature(name)}")
    return arguments


def _applied(called: Value, arguments: list[Value], node: Call) -> Value:
    """A layout applied to a coordinate, or its slice if the coordinate contains ``_``; a swizzle applied to an
    index."""
    coordinate = arguments[0] if len(arguments) == 1 else tuple(arguments)
    if isinstance(called, Swizzle):
        with _at(node.arguments[0] if arguments else node):
            return called(values.checked(coordinate, "integer", "the argument of a swizzle"))
    if not isinstance(called, Layout | Composed):
        raise LayoutError(f"{values.text(called)} is not a layout, so it cannot be applied to a coordinate")
    if not arguments:
        raise LayoutError(f"{called} needs a coordinate such as 3 or (1,2); '_' selects all of a mode")
    with _at(node.arguments[0]):
        if _slices(coordinate):
            return algebra.sliced(called, cast("algebra.Slice", coordinate))
        return called(values.checked(coordinate, "coordinate", "the argument of a layout"))


def _slices(coordinate: Value) -> bool:
    return coordinate is None or (isinstance(coordinate, tuple) and any(map(_slices, coordinate)))
