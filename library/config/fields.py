"""Fields of configs by name, as manifests, names and diagnostics have them; and configs that trace what is read.

A kernel set is a grid over its axes, so a rule is evaluated once for each distinct combination of the fields that it
reads and its verdict broadcast over the rest: two million candidates cost a few thousand evaluations of plain Python.
A rule reads members of a config, here of a :class:`ConfigView`, which finds their values by name and so knows which
were read. What a rule adds up of many fields, it reads as a :class:`part` of a plan, each of which reads few.
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
"""Values by field name; a rule may be given only the fields it declares."""

_Result = TypeVar("_Result")


class UnreadError(LookupError):
    """A field or a part is read in which the candidates of a group may differ."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.reader = reader


class GroupFields(dict[Any, Any]):
    """The fields and parts in which the candidates of a group are equal."""

    def __missing__(self, reader: Reader) -> Any:
        raise UnreadError(reader)

    def having(self, reader: Reader, value: Any) -> GroupFields:
        """Those of a smaller group, in which a further field or part has a value."""
        fields = GroupFields(self)
        fields[reader] = value
        return fields


class member(Generic[_Result]):
    """Makes a method a member that is computed when it is first read; ``cached_property`` takes a lock for that."""

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
    """Makes a method of a plan such a member, which a grid evaluates by itself, over the few fields that it reads.

    What reads it is then evaluated once for each of its results, however many combinations of fields have the same.
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
        """The part of the plan of a config."""
        return self.function(self.owner(config))


Reader = str | part[Any]
"""What is read of a config: a field, by its name, or a part of its plan."""

FIELD_NAMES: tuple[str, ...] = tuple(TABLE)
"""Every leaf of a config in the order of its members; C's are ``"none"`` and 0 where a config has no C."""


def _reader(row: Row) -> Callable[[GemmConfig], Value]:
    if row.absent is None:
        return attrgetter(row.name)
    return lambda config: getattr(config.outputs["c"], row.leaf)


READERS: Mapping[str, Callable[[GemmConfig], Value]] = {row.name: _reader(row) for row in TABLE.values()}
"""What reads a field of a config, by its name; of C, what stands for none where there is none."""


class ConfigView(GemmConfig):
    """A config whose members are found in fields, all or some of a config's, when they are read."""

    fields: Fields

    def __init__(self, fields: Fields) -> None:
        self.__dict__["fields"] = fields

    @property
    def c(self) -> OutputOperand | None:
        """The added matrix; None where there is none."""
        return None if self.fields["c.dtype"] == "none" else self.outputs["c"]

    @member
    def outputs(self) -> Mapping[OutputName, OutputOperand]:
        """C and D by their names; whether there is a C is not read."""
        return {"c": _VIEWS["c"](self.fields), "d": self.d}


def _field_property(row: Row) -> property:
    """A member of a view that is found in its fields."""
    name = row.name
    return property(lambda view: view.fields[name])


def _view(group: str) -> type:
    """The class of views of a part of a config."""
    members = {row.leaf: _field_property(row) for row in GROUPS[group]}
    return type(f"{PARTS[group].__name__}View", (PARTS[group],), {"__init__": ConfigView.__init__, **members})


def _part_view(group: str) -> member[Any]:
    """The view of a part of a config."""
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
    """The config that has these fields; the inverse of :func:`fields_of`.

    Raises:
        pydantic.ValidationError: some have values that they cannot have; names each.
    """
    return _validator()(parts_of({name: fields[name] for name in FIELD_NAMES}))


def parts_of(fields: Fields) -> dict[str, Any]:
    """Fields, all or some of a config's, as nested mappings; C is None where there is none."""
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
