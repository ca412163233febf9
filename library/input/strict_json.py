"""JSON from files that somebody else may have written: a value, or a ValueError, whatever the bytes are; rows of it,
read as tuples and dataclasses say, or refused by their place.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, get_args, get_type_hints

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
            types, words = kinds[name]
            typed(each, types, place, name)
            if words and each not in words:
                raise RowError(f"{place}.{name} is {each!r:.80}; it must be {one_of(words)}")
    return fields


def made(place: str, value: Any, of: type[Row]) -> Row:
    """The tuple or dataclass of a mapping.

    Raises:
        RowError: as for :func:`row`; also where a field is missing or unknown.
    """
    fields = row(place, value, of)
    try:
        return of(**fields)
    except TypeError as error:
        raise RowError(f"{place}: {error}") from None


def typed(value: Any, types: Sequence[type], *place: str) -> Any:
    """A value, which must be of one of these types of JSON; RowError names its place."""
    is_odd = (type(value) is int and not 0 <= value <= LARGEST) or (type(value) is str and not value.isprintable())
    if type(value) not in types or is_odd:
        wanted = " or ".join(_WORDS[each] for each in types)
        raise RowError(f"{'.'.join(place)} is {value!r:.80}; it must be {wanted}")
    return value


@functools.cache
def _kinds(of: type) -> Mapping[str, tuple[Sequence[type], Sequence[Any]]]:
    """The types that JSON has for the fields of a tuple or dataclass; and the only values, where these are listed."""
    leaves = {name: [*_leaves(hint)] for name, hint in get_type_hints(of).items()}
    return {
        name: (
            [*dict.fromkeys(kind for leaf in found for kind in _json_types(leaf))],
            [leaf if leaf is not NoneType else None for leaf in found]
            if any(not isinstance(leaf, type) for leaf in found)
            else [],
        )
        for name, found in leaves.items()
    }


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
