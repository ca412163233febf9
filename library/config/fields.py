"""Fields of configs by name, and views of configs that record which fields a rule reads.

A kernel set is a grid over its axes. gemmill evaluates a rule once for each distinct combination of the fields that the
rule reads, and broadcasts the result: two million candidates cost a few thousand evaluations in Python. A rule reads a
:class:`ConfigView`, which looks values up by name and so determines which fields are read. A quantity that depends on
many fields is computed as :class:`part` members of a plan, each of which reads few fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

from gemmill.library.config.field import Value as Value
from gemmill.library.config.field_table import FORMER, GROUPS, PARTS, TABLE, Row
from gemmill.library.config.model import GemmConfig, OutputName, OutputOperand

Fields = Mapping[str, Value]
"""Values by field name. It can be limited to the fields that a rule declares."""

_Result = TypeVar("_Result")


class UnreadError(LookupError):
    """A function read a field or a part in which the candidates of a group can differ."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.reader = reader


class GroupFields(dict[Any, Any]):
    """The fields and parts that all candidates of a group have in common."""

    def __missing__(self, reader: Reader) -> Any:
        raise UnreadError(reader)

    def having(self, reader: Reader, value: Any) -> GroupFields:
        """The fields of a subgroup in which one more field or part has a common value."""
        fields = GroupFields(self)
        fields[reader] = value
        return fields


class member(Generic[_Result]):
    """Decorator for a member that is computed on first access; like ``cached_property``, but without a lock."""

    def __init__(self, function: Callable[[Any], _Result]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    @overload
    def __get__(self, holder: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, holder: object, owner: type[Any] | None = None) -> _Result: ...
    def __get__(self, holder: Any, owner: type[Any] | None = None) -> Any:
        if holder is None:
            return self
        holder.__dict__[self.name] = value = self.function(holder)
        return value


class part(member[_Result]):
    """A :class:`member` of a plan that a grid evaluates separately, over the few fields that it reads.

    A rule that reads it is then evaluated once for each distinct result, not for each combination of fields.
    """

    @overload
    def __get__(self, holder: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, holder: object, owner: type[Any] | None = None) -> _Result: ...
    def __get__(self, holder: Any, owner: type[Any] | None = None) -> Any:
        if (
            holder is not None
            and isinstance(view := holder.config, ConfigView)
            and isinstance(view.fields, GroupFields)
        ):
            return view.fields[self]
        return super().__get__(holder, owner)

    def __call__(self, config: GemmConfig) -> _Result:
        """The value of the part for ``config``."""
        return self.function(self.owner(config))


Reader = str | part[Any]
"""What a function can read: the name of a field, or a part of a plan."""

FIELD_NAMES: tuple[str, ...] = tuple(TABLE)
"""Every leaf of a config in the order of its members. Without C, the fields of C are ``"none"`` and 0."""


def _reader(row: Row) -> Callable[[GemmConfig], Value]:
    if row.absent is None:
        return attrgetter(row.name)
    return lambda config: getattr(config.outputs["c"], row.leaf)


READERS: Mapping[str, Callable[[GemmConfig], Value]] = {row.name: _reader(row) for row in TABLE.values()}
"""A function by field name that reads the field from a config; for an absent C it returns the placeholder."""


class ConfigView(GemmConfig):
    """A config whose members are looked up in a mapping of fields, which can be incomplete, when they are read."""

    fields: Fields

    def __init__(self, fields: Fields) -> None:
        self.__dict__["fields"] = fields

    @property
    def c(self) -> OutputOperand | None:
        """The added matrix; None if there is none."""
        return None if self.fields["c.dtype"] == "none" else self.outputs["c"]

    @member
    def outputs(self) -> Mapping[OutputName, OutputOperand]:
        """C and D by name; this does not read whether there is a C."""
        return {"c": _VIEWS["c"](self.fields), "d": self.d}


def _field_property(row: Row) -> property:
    """A property of a view that looks up a field."""
    name = row.name
    return property(lambda view: view.fields[name])


def _view(group: str) -> type:
    """The view class of a part of a config."""
    members = {row.leaf: _field_property(row) for row in GROUPS[group]}
    return type(f"{PARTS[group].__name__}View", (PARTS[group],), {"__init__": ConfigView.__init__, **members})


def _part_view(group: str) -> member[Any]:
    """The member of :class:`ConfigView` for a part of a config."""
    view = member(lambda config: _VIEWS[group](config.fields))
    view.name = group
    return view


_VIEWS = {group: _view(group) for group in PARTS}

for _group, _rows in GROUPS.items():
    if _group != "c":
        setattr(ConfigView, _group, _part_view(_group) if _group in PARTS else _field_property(_rows[0]))


def fields_of(config: GemmConfig) -> dict[str, Value]:
    """The fields of one config, in the order of :data:`FIELD_NAMES`."""
    return {name: read(config) for name, read in READERS.items()}


def config_of(fields: Fields) -> GemmConfig:
    """The config with these fields; the inverse of :func:`fields_of`.

    Raises:
        pydantic.ValidationError: lists each field with an invalid value.
    """
    return _validator()(parts_of({name: fields[name] for name in FIELD_NAMES}))


def parts_of(fields: Fields) -> dict[str, Any]:
    """Some or all fields of a config as nested mappings; C is None if it is absent."""
    parts: dict[str, Any] = {}
    for name, value in fields.items():
        row = TABLE[name]
        if row.leaf:
            parts.setdefault(row.group, {})[row.leaf] = value
        else:
            parts[name] = value
    if fields.get("c.dtype") == "none":
        parts["c"] = None
    return parts


def made_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of :class:`GemmConfig` from nested mappings, as ``dataclasses.asdict`` returns them.

    Nested parts become instances of their classes. Only field names are checked: former names are accepted, and a
    missing or unknown name is a TypeError.
    """
    return {name: PARTS[name](**_present(name, part)) if type(part) is dict else part for name, part in parts.items()}


def _present(group: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a part with former names replaced by present ones."""
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
"""For each group, the present names of its leaves by former names."""


@cache
def _validator() -> Callable[[object], GemmConfig]:
    from pydantic import TypeAdapter  # imported here so that programs that read no manifests start faster

    return TypeAdapter(GemmConfig).validate_python
