"""Former names of fields, and former words of them, in manifests: read as the present ones, with a warning that says
which."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from gemmill.library.config.field_table import FORMER, TABLE
from gemmill.library.errors import RenamedWarning
from gemmill.library.manifest.document import Document, Location

_BEFORE: Mapping[str, int] = {"defaults": 1, "sets": 1, "presets": 3}
"""Keys on the way from the root of a manifest to the choices of a set, by the first."""


def rename(document: Document) -> None:
    """Gives fields that a document calls by former names their present ones, where they stand.

    One warning for each former name says where it first stands. A field that has both is a fault.
    """
    _rename_words(document)
    places: dict[str, list[tuple[int, int]]] = {}
    moves: dict[Location, str] = {}
    for location in [*document.keys]:
        if (name := _field(location)) not in FORMER:
            continue
        places.setdefault(name, []).append(document.keys[location])
        present = moves[location] = FORMER[name].rpartition(".")[2]
        if (*location[:-1], present) in document.keys:
            document.fault(location, f"is the former name of {present}, which stands here too; remove it", key=True)
    if moves:
        _move(document, moves)
    for name, found in places.items():
        line, column = found[0]
        others = f", as in {len(found) - 1} other places" if len(found) > 1 else ""
        warn(f"{document.path}:{line}:{column}: {name} is now called {FORMER[name]}{others}")


def _field(location: Location) -> str:
    """The field whose value or choices stand at a location, or what is no name of a field."""
    keys = [key for key in location if isinstance(key, str)]
    return ".".join(keys[_BEFORE.get(keys[0], len(keys)) :]) if keys else ""


def _rename_words(document: Document) -> None:
    """Gives fields their present words. Beside a word whose kernels had a number of slices each, that number goes."""
    for location, (line, column) in document.values.items():
        row = TABLE.get(_field(location))
        if row is None or not row.field.former_words:
            continue
        holder: Any = document.data
        for key in location[:-1]:
            holder = holder[key]
        former = holder[location[-1]]
        if isinstance(former, str) and (present := row.field.former_words.get(former)):
            warn(f"{document.path}:{line}:{column}: {row.name} {former} is replaced by {present}")
            holder[location[-1]] = present
            if isinstance(holder, dict):
                holder.pop("splits", None)


def warn(message: str) -> None:
    """Warns of a former name; Python shows equal warnings once."""
    warnings.warn(f"{message}; the former name is still read", RenamedWarning, stacklevel=2)


def _move(document: Document, moves: Mapping[Location, str]) -> None:
    """Gives what stands at some keys other keys."""
    for old in sorted(moves, key=len, reverse=True):  # the innermost first, while those around it have their names
        holder: Any = document.data
        for key in old[:-1]:
            holder = holder[key]
        renamed = {moves[old] if key == old[-1] else key: value for key, value in holder.items() if key != moves[old]}
        holder.clear()
        holder.update(renamed)

    def moved(location: Location) -> Location:
        return tuple(moves.get(location[: end + 1], part) for end, part in enumerate(location))

    tables: tuple[dict[Location, Any], ...] = (document.values, document.keys, document.written)
    for table in tables:
        content = {moved(location): found for location, found in table.items()}
        table.clear()
        table.update(content)
    document.invalid = {moved(location) for location in document.invalid}
