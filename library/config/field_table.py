"""The table of fields: every leaf of a config, as its declaration says it.

Whatever speaks of fields is a fold over it: names, ``where`` filters, the schema of manifests, checks, docs. To add a
field is to declare a member of :class:`~gemmill.library.config.model.GemmConfig` or of one of its parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from gemmill.library.config.field import Field, Value
from gemmill.library.config.model import GemmConfig
from gemmill.library.epilogues.parse import LINEAR


@dataclass(frozen=True, slots=True)
class Row:
    """One field."""

    name: str
    """``tile.m``: what fields are called in filters, rules and messages."""
    group: str
    """``tile``: the member of a config that it is, or is a leaf of."""
    leaf: str
    """``m``; empty for members without leaves."""
    type: type[str] | type[int]
    values: tuple[Value, ...]
    """What it can hold; of an epilogue, the usual text; empty for numbers of at least 1."""
    default: Value | None
    """Its value where nothing is said; None where something must be."""
    absent: Value | None
    """Its value where an optional part, C, is not there; None for fields of other parts."""
    field: Field

    @property
    def is_open(self) -> bool:
        """Whether it can hold other texts than :attr:`values`: an epilogue can be any expression."""
        return self.values == (LINEAR,)

    @property
    def example(self) -> Value:
        """A usual value."""
        value = self.default if self.field.example is None else self.field.example
        assert value is not None, f"{self.name} has neither a default nor an example"
        return value

    @property
    def part(self) -> str:
        """The part of a kernel's name that it stands in."""
        return self.field.part or (self.group.upper() if len(self.group) == 1 else self.group)

    @property
    def of_problem(self) -> str:
        """What a problem calls it, of a field that is part of its format: ``a_dtype``, ``batching``."""
        return f"{self.group}_{self.leaf}" if len(self.group) == 1 else self.leaf or self.name

    @property
    def doc(self) -> str:
        """What it is, and what its words mean."""
        words = "; ".join(f"{word}: {meaning}" for word, meaning in self.field.means.items())
        return f"{self.field.doc.removesuffix('.')}; {words}." if words else self.field.doc


NAME_PARTS = (
    *("arch", "A", "B", "accumulator", "C", "D", "tile", "cluster", "schedule", "stages"),
    *("scheduler", "splits", "epilogue"),
)
"""The parts of a kernel's name, in their order."""


def _rows() -> Iterator[Row]:
    for group, hint, default in _members(GemmConfig):
        if (kind := _class(hint)) is None:
            yield _row(group, "", hint, default, False)
        else:
            yield from (_row(group, *member, kind is not hint) for member in _members(kind))


def _class(hint: Any) -> type | None:
    """The class of a member that has leaves; None for other members."""
    kinds: Iterator[type] = (kind for kind in (*get_args(hint), hint) if isinstance(kind, type))
    return next(filter(dataclasses.is_dataclass, kinds), None)


def _members(kind: Any) -> Sequence[tuple[str, Any, Any]]:
    """Name, type with its :class:`Field`, and default of each member of a class; None for no default."""
    hints, members = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
    return [(m.name, hints[m.name], None if m.default is dataclasses.MISSING else m.default) for m in members]


def _row(group: str, leaf: str, hint: Any, default: Any, optional: bool) -> Row:
    declared, field = hint.__origin__, hint.__metadata__[-1]
    values = get_args(declared) or ((default,) if declared is str else ())
    kind = type(values[0]) if values else int
    absent = None if not optional else "none" if kind is str else 0
    row = Row(f"{group}.{leaf}" if leaf else group, group, leaf, kind, values, default, absent, field)
    if row.part not in NAME_PARTS:
        raise TypeError(f"{row.name} stands in part {row.part!r} of names, which is none of {', '.join(NAME_PARTS)}")
    return row


TABLE: Mapping[str, Row] = MappingProxyType({row.name: row for row in _rows()})
"""Every field by name, in the order of a config's members."""
GROUPS: Mapping[str, tuple[Row, ...]] = MappingProxyType(
    {group: tuple(row for row in TABLE.values() if row.group == group) for group in GemmConfig.__dataclass_fields__}
)
"""The fields of each member of a config: its leaves, or itself."""
PARTS: Mapping[str, type] = MappingProxyType(
    {group: kind for group, hint, _ in _members(GemmConfig) if (kind := _class(hint)) is not None}
)
"""The class of each member of a config that has leaves."""
FORMER: Mapping[str, str] = MappingProxyType(
    {".".join(filter(None, (row.leaf and row.group, old))): row.name for row in TABLE.values() for old in row.field.was}
)
"""The present names of fields by their former ones."""
