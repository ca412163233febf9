"""Strict JSON for untrusted files: any input gives a value or a ValueError, never another error.

Rows are converted to tuples and dataclasses by their type hints; an error names the location of an invalid value.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from gemmill.library.wording import one_of


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8. The caller must limit its size.

    Raises:
        ValueError: the text is not JSON, contains NaN or Infinity, or is nested too deeply.
    """
    try:
        return _DECODER.decode(data.decode())
    except RecursionError:
        raise ValueError("lists and mappings are nested too deeply") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


LARGEST = 1 << 62
"""Largest integer, so that the sum of two of them can be an offset in a file."""
_WORDS: Mapping[type, str] = MappingProxyType(
    {
        str: "a printable text",
        int: "a whole number from 0 to 2^62",
        float: "a number",
        bool: "true or false",
        NoneType: "null",
        list: "a list",
        dict: "a mapping",
    }
)
"""The types of JSON as words in messages."""
Row = TypeVar("Row")


class RowError(ValueError):
    """A value has a wrong type or is not an allowed word; the message names its location."""


def rows(place: str, value: Any, of: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a list, each with its location; RowError as for :func:`row`."""
    for i, item in enumerate(typed(value, (list,), place)):
        yield f"{place}[{i}]", row(f"{place}[{i}]", item, of)


def row(place: str, value: Any, of: type) -> dict[str, Any]:
    """A mapping for a tuple or dataclass. It is not checked for missing or unknown fields.

    Raises:
        RowError: names the location of a value with a wrong type, or that is not an allowed word.
    """
    kinds = _kinds(of)
    fields: dict[str, Any] = typed(value, (dict,), place)
    for name, field_value in fields.items():
        if name in kinds:
            _leaf(*kinds[name], place, name, value=field_value)
    return fields


def read_row(place: str, value: Any, of: type[Row]) -> Row:
    """The tuple or dataclass of a mapping, including nested ones.

    Raises:
        RowError: names the location of a value with a wrong type, of a value that is not an allowed word, or of a
            mapping with a missing or unknown field.
    """
    readers = _readers(cast("Hashable", of))
    fields: dict[str, Any] = typed(value, (dict,), place)
    read = {
        name: readers[name](f"{place}.{name}", field_value) for name, field_value in fields.items() if name in readers
    }
    try:
        return of(**{**fields, **read})
    except TypeError as error:  # its text begins with the name of the function
        raise RowError(f"{place}: {str(error).partition('() ')[2] or error}") from None


@functools.cache
def _readers(row_type: Hashable) -> Mapping[str, Callable[[str, Any], Any]]:
    """The readers of the fields of a tuple or dataclass."""
    return {name: _reader(hint) for name, hint in get_type_hints(row_type).items()}


def _reader(hint: Any) -> Callable[[str, Any], Any]:
    """The reader of values of a type; it takes the location and the value."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return lambda place, value: value
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return lambda place, value: read_row(place, value, cast("type", kind))
    if kind is tuple:
        return functools.partial(_items, _reader(arguments[0]), None if arguments[-1] is ... else len(arguments))
    if kind in (dict, Mapping):
        return functools.partial(_values, _reader(arguments[1]))
    if arguments and is_dataclass(arguments[0]):  # an optional dataclass: no other union is declared
        return lambda place, value: None if value is None else read_row(place, value, arguments[0])
    types, words = _leaf_kinds(hint)
    return lambda place, value: _leaf(types, words, place, value=value)


def _items(read: Callable[[str, Any], Any], count: int | None, place: str, value: Any) -> tuple[Any, ...]:
    items = typed(value, (list,), place)
    if count not in (None, len(items)):
        raise RowError(f"{place} has {len(items)} items; it must have {count}")
    return tuple(read(f"{place}[{i}]", item) for i, item in enumerate(items))


def _values(read: Callable[[str, Any], Any], place: str, value: Any) -> dict[str, Any]:
    return {name: read(f"{place}.{name!r:.200}", item) for name, item in typed(value, (dict,), place).items()}


def _leaf(types: Sequence[type], words: Sequence[Any], *place: str, value: Any) -> Any:
    typed(value, types, *place)
    if words and value not in words:
        raise RowError(f"{'.'.join(place)} is {value!r:.80}; it must be {one_of(words)}")
    return value


def typed(value: Any, types: Sequence[type], *place: str) -> Any:
    """The value itself, if it has one of these JSON types; otherwise a RowError with its location."""
    is_odd = (type(value) is int and not 0 <= value <= LARGEST) or (type(value) is str and not value.isprintable())
    if type(value) not in types or is_odd:
        expected = " or ".join(_WORDS[kind] for kind in types)
        raise RowError(f"{'.'.join(place)} is {value!r:.80}; it must be {expected}")
    return value


@functools.cache
def _kinds(row_type: type) -> Mapping[str, tuple[Sequence[type], Sequence[Any]]]:
    """For each field of a tuple or dataclass, its JSON types, and its allowed values if they are listed."""
    return {name: _leaf_kinds(hint) for name, hint in get_type_hints(row_type).items()}


def _leaf_kinds(hint: Any) -> tuple[Sequence[type], Sequence[Any]]:
    leaves = [*_leaves(hint)]
    words = [leaf if leaf is not NoneType else None for leaf in leaves]
    return (
        [*dict.fromkeys(kind for leaf in leaves for kind in _json_types(leaf))],
        words if any(not isinstance(leaf, type) for leaf in leaves) else [],
    )


def _leaves(hint: Any) -> Iterator[Any]:
    """The types of a union, or the words of a Literal."""
    if arguments := get_args(hint):
        for argument in arguments:
            yield from _leaves(argument)
    else:
        yield hint


def _json_types(leaf: Any) -> Iterator[type]:
    if not isinstance(leaf, type):
        yield type(leaf)
    else:
        yield leaf if leaf in _WORDS else dict
        if leaf is float:
            yield int
