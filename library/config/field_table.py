"""The table of fields: every leaf of a config with its metadata.

Kernel names, ``where`` filters, the schema of manifests, checks and docs are all derived from it. To add a field,
declare a member of :class:`~gemmill.library.config.model.GemmConfig` or of one of its parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_type_hints

from gemmill.library.config.field import Field, Value
from gemmill.library.config.model import GemmConfig
from gemmill.library.epilogues.parse import LINEAR


class Row(NamedTuple):
    """One field."""

    name: str
    """The name in filters, rules and messages, for example ``tile.m``."""
    group: str
    """The member of a config that contains it, for example ``tile``; the field's own name if it is not nested."""
    leaf: str
    """``m``; empty for members without leaves."""
    type: type[str] | type[int]
    values: tuple[Value, ...]
    """The allowed values; only the typical text for an epilogue; empty for integers of at least 1."""
    default: Value | None
    """The default; None if a value is required."""
    absent: Value | None
    """The value if the optional part, C, is absent; None for fields of other parts."""
    field: Field

    @property
    def is_open(self) -> bool:
        """Whether other texts than :attr:`values` are allowed: an epilogue can be any expression."""
        return self.values == (LINEAR,)

    @property
    def example(self) -> Value:
        """A typical value."""
        value = self.default if self.field.example is None else self.field.example
        assert value is not None, f"{self.name} has neither a default nor an example"
        return value

    @property
    def part(self) -> str:
        """The part of a kernel's name that contains it."""
        return self.field.part or (self.group.upper() if len(self.group) == 1 else self.group)

    @property
    def of_problem(self) -> str:
        """The name of the same field of a problem, for fields with ``format``: ``a_dtype``, ``batching``."""
        return f"{self.group}_{self.leaf}" if len(self.group) == 1 else self.leaf or self.name

    @property
    def doc(self) -> str:
        """The description of the field, followed by the meanings of its values."""
        words = "; ".join(f"{word}: {meaning}" for word, meaning in self.field.means.items())
        return f"{self.field.doc.removesuffix('.')}; {words}." if words else self.field.doc


NAME_PARTS = (
    *("arch", "A", "B", "accumulator", "C", "D", "tile", "cluster", "schedule", "stages"),
    *("scheduler", "splits", "epilogue"),
)
"""The parts of a kernel's name, in order."""


def _rows() -> Iterator[Row]:
    for group, hint, default in _members(GemmConfig):
        if (kind := _class(hint)) is None:
            yield _row(group, "", hint, default, False)
        else:
            yield from (_row(group, *member, kind is not hint) for member in _members(kind))


def _class(hint: Any) -> type | None:
    """The class of a nested member; None for other members."""
    kinds: Iterator[type] = (kind for kind in (*get_args(hint), hint) if isinstance(kind, type))
    return next(filter(dataclasses.is_dataclass, kinds), None)


def _members(kind: Any) -> Sequence[tuple[str, Any, Any]]:
    """For each member of a class: its name, its type with its :class:`Field`, and its default or None."""
    hints, members = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
    return [(m.name, hints[m.name], None if m.default is dataclasses.MISSING else m.default) for m in members]


def _row(group: str, leaf: str, hint: Any, default: Any, optional: bool) -> Row:
    declared, field = hint.__origin__, hint.__metadata__[-1]
    values = get_args(declared) or ((default,) if declared is str else ())
    kind = type(values[0]) if values else int
    absent = None if not optional else "none" if kind is str else 0
    row = Row(f"{group}.{leaf}" if leaf else group, group, leaf, kind, values, default, absent, field)
    if row.part not in NAME_PARTS:
        raise TypeError(f"{row.name}: part is {row.part!r}; it must be one of {', '.join(NAME_PARTS)}")
    return row


TABLE: Mapping[str, Row] = MappingProxyType({row.name: row for row in _rows()})
"""Every field by name, in the order of the members of a config."""
GROUPS: Mapping[str, tuple[Row, ...]] = MappingProxyType(
    {group: tuple(row for row in TABLE.values() if row.group == group) for group in GemmConfig.__dataclass_fields__}
)
"""The fields of each member of a config: its leaves, or the member itself."""
PARTS: Mapping[str, type] = MappingProxyType(
    {group: kind for group, hint, _ in _members(GemmConfig) if (kind := _class(hint)) is not None}
)
"""The class of each nested member of a config."""
FORMER: Mapping[str, str] = MappingProxyType(
    {".".join(filter(None, (row.leaf and row.group, old))): row.name for row in TABLE.values() for old in row.field.was}
)
"""Present names of fields by former names."""
