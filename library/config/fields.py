"""A config flattened to named leaves: what rules, ``where`` filters, names and diagnostics speak of.

A kernel set is a grid over its axes, so a rule is evaluated once for each distinct combination of the fields that it
reads and its verdict broadcast over the rest: two million candidates cost a few thousand evaluations of plain Python.
What a rule adds up of many fields, it reads as parts (:func:`part`), each of which reads few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from gemmill.library.config.field import Value as Value
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.table import FORMER, GROUPS, PARTS, TABLE

Fields = Mapping[str, Value]
"""Values by field name; a rule may be given only the fields it declares."""
Reader = str | Callable[[Fields], Any]
"""What is read of a config: a field, by its name, or a part."""

_Result = TypeVar("_Result")


class UnreadError(LookupError):
    """Something is read that a group of candidates has not been told apart by."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.reader = reader


class Known(dict[Any, Any]):
    """The fields and parts that a group of candidates has in common. Stands for their fields; the rest is unread."""

    def __missing__(self, reader: Reader) -> Any:
        raise UnreadError(reader)


def part(function: Callable[[Fields], _Result]) -> Callable[[Fields], _Result]:
    """Makes a function of fields a part: a grid evaluates it by itself, over the few fields that it reads.

    What reads it is then evaluated once for each of its results, however many combinations of fields have the same.
    """

    @wraps(function)
    def read(fields: Fields) -> _Result:
        return fields[read] if type(fields) is Known else function(fields)

    return read


FIELD_NAMES: tuple[str, ...] = tuple(TABLE)
"""Every leaf of a config in the order of its members; C's are ``"none"`` and 0 where a config has no C."""

_NO_C: Fields = MappingProxyType({row.name: row.absent for row in GROUPS["c"] if row.absent is not None})
_BUT_C = tuple(name for name in FIELD_NAMES if name not in _NO_C)
_read_c, _read_but_c = attrgetter(*_NO_C), attrgetter(*_BUT_C)


def fields_of(config: GemmConfig) -> dict[str, Value]:
    """The fields of one config, in the order of :data:`FIELD_NAMES`."""
    leaves = dict(zip(_BUT_C, _read_but_c(config), strict=True))
    leaves |= _NO_C if config.c is None else zip(_NO_C, _read_c(config), strict=True)
    return {name: leaves[name] for name in FIELD_NAMES}


def config_of(fields: Fields) -> GemmConfig:
    """The config that has these fields; the inverse of :func:`fields_of`.

    Raises:
        pydantic.ValidationError: some have values that they cannot have; names each.
    """
    return _validator()(parts_of({name: fields[name] for name in FIELD_NAMES}))


def parts_of(fields: Fields) -> dict[str, Any]:
    """Fields, all or some of a config's, as nested mappings; C is None where there is none."""
    parts: dict[str, Any] = {}
    for name, value in fields.items():
        part, _, leaf = name.partition(".")
        if leaf:
            parts.setdefault(part, {})[leaf] = value
        else:
            parts[part] = value
    if fields.get("c.dtype") == "none":
        parts["c"] = None
    return parts


def made_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of :class:`GemmConfig` from nested mappings, as ``dataclasses.asdict`` makes them: the parts that have
    classes become those. Nothing is checked but the names of fields, former ones included; TypeError for one that is
    missing or unknown."""
    return {name: PARTS[name](**_present(name, part)) if type(part) is dict else part for name, part in parts.items()}


def _present(group: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by their present names."""
    present = _PRESENT[group]
    return {present.get(leaf, leaf): value for leaf, value in leaves.items()}


_PRESENT: Mapping[str, Mapping[str, str]] = {
    group: {
        old.removeprefix(f"{group}."): name.removeprefix(f"{group}.")
        for old, name in FORMER.items()
        if old.startswith(f"{group}.")
    }
    for group in PARTS
}
"""Present names of the leaves of each group by their former ones."""


@cache
def _validator() -> Callable[[object], GemmConfig]:
    from pydantic import TypeAdapter  # a program that reads no manifests starts faster

    return TypeAdapter(GemmConfig).validate_python
