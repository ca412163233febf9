"""JSON from files that somebody else may have written: a value, or a ValueError, whatever the bytes are; rows of it,
read as tuples and dataclasses say, or refused by their place.
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
    """The value of a JSON text in UTF-8. Its size is for the caller to bound.

    Raises:
        ValueError: it is no JSON: the words NaN and Infinity are none, nor is what nests too deeply to be read.
    """
    try:
        return _DECODER.decode(data.decode())
    except RecursionError:
        raise ValueError("lists and mappings nest too deeply") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


LARGEST = 1 << 62
"""Whole numbers are at most this, so that sums of two can be offsets in a file."""
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
"""The types of JSON in words."""
Row = TypeVar("Row")


class RowError(ValueError):
    """A value has another type, or is another word, than its place takes; the message names the place."""


def rows(place: str, value: Any, of: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a list, each with its place; RowError as for :func:`row`."""
    for i, each in enumerate(typed(value, (list,), place)):
        yield f"{place}[{i}]", row(f"{place}[{i}]", each, of)


def row(place: str, value: Any, of: type) -> dict[str, Any]:
    """A mapping to make a tuple or dataclass of, whose fields are for the caller to count.

    Raises:
        RowError: names the place of a value of another type, or of another word where there are few.
    """
    kinds = _kinds(of)
    fields: dict[str, Any] = typed(value, (dict,), place)
    for name, each in fields.items():
        if name in kinds:
            _leaf(*kinds[name], place, name, value=each)
    return fields


def read_row(place: str, value: Any, of: type[Row]) -> Row:
    """The tuple or dataclass of a mapping, and those within it.

    Raises:
        RowError: names the place of a value of another type, or of another word where there are few, and of a mapping
            that lacks a field or has an unknown one.
    """
    readers = _readers(cast("Hashable", of))
    fields: dict[str, Any] = typed(value, (dict,), place)
    read = {name: readers[name](f"{place}.{name}", each) for name, each in fields.items() if name in readers}
    try:
        return of(**{**fields, **read})
    except TypeError as error:  # which begins with the name of the function
        raise RowError(f"{place}: {str(error).partition('() ')[2] or error}") from None


@functools.cache
def _readers(of: Hashable) -> Mapping[str, Callable[[str, Any], Any]]:
    """What reads the fields of a tuple or dataclass."""
    return {name: _reader(hint) for name, hint in get_type_hints(of).items()}


def _reader(hint: Any) -> Callable[[str, Any], Any]:
    """What reads a value of a type at a place."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return lambda place, value: value
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return lambda place, value: read_row(place, value, cast("type", kind))
    if kind is tuple:
        return functools.partial(_items, _reader(arguments[0]), None if arguments[-1] is ... else len(arguments))
    if kind in (dict, Mapping):
        return functools.partial(_values, _reader(arguments[1]))
    if arguments and is_dataclass(arguments[0]):  # or None, as nothing else is declared
        return lambda place, value: None if value is None else read_row(place, value, arguments[0])
    types, words = _leaf_kinds(hint)
    return lambda place, value: _leaf(types, words, place, value=value)


def _items(read: Callable[[str, Any], Any], count: int | None, place: str, value: Any) -> tuple[Any, ...]:
    items = typed(value, (list,), place)
    if count not in (None, len(items)):
        raise RowError(f"{place} has {len(items)} items; it must have {count}")
    return tuple(read(f"{place}[{i}]", each) for i, each in enumerate(items))


def _values(read: Callable[[str, Any], Any], place: str, value: Any) -> dict[str, Any]:
    return {name: read(f"{place}.{name!r:.200}", each) for name, each in typed(value, (dict,), place).items()}


def _leaf(types: Sequence[type], words: Sequence[Any], *place: str, value: Any) -> Any:
    typed(value, types, *place)
    if words and value not in words:
        raise RowError(f"{'.'.join(place)} is {value!r:.80}; it must be {one_of(words)}")
    return value


def typed(value: Any, types: Sequence[type], *place: str) -> Any:
    """A value, which must be of one of these types of JSON; RowError names its place."""
    is_odd = (type(value) is int and not 0 <= value <= LARGEST) or (type(value) is str and not value.isprintable())
    if type(value) not in types or is_odd:
        expected = " or ".join(_WORDS[each] for each in types)
        raise RowError(f"{'.'.join(place)} is {value!r:.80}; it must be {expected}")
    return value


@functools.cache
def _kinds(of: type) -> Mapping[str, tuple[Sequence[type], Sequence[Any]]]:
    """The types that JSON has for the fields of a tuple or dataclass; and the only values, where these are listed."""
    return {name: _leaf_kinds(hint) for name, hint in get_type_hints(of).items()}


def _leaf_kinds(hint: Any) -> tuple[Sequence[type], Sequence[Any]]:
    leaves = [*_leaves(hint)]
    words = [leaf if leaf is not NoneType else None for leaf in leaves]
    return (
        [*dict.fromkeys(kind for leaf in leaves for kind in _json_types(leaf))],
        words if any(not isinstance(leaf, type) for leaf in leaves) else [],
    )


def _leaves(hint: Any) -> Iterator[Any]:
    """The types of a union, and the words of a Literal."""
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
