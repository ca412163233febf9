"""Former names and values of fields in manifests: they are replaced by the present ones, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from gemmill.library.config.field_table import FORMER, TABLE
from gemmill.library.errors import RenamedWarning
from gemmill.library.manifest.document import Document, Location

_BEFORE: Mapping[str, int] = {"defaults": 1, "sets": 1, "presets": 3}
"""By the first key, the number of keys from the root of a manifest to the choices of a set."""


def rename(document: Document) -> None:
    """Replace former names of fields in a document by present ones.

    One warning for each former name gives its first location. A field with both names is a fault.
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
            document.fault(location, f"is the former name of {present}, which is also set here; remove it", key=True)
    if moves:
        _move(document, moves)
    for name, positions in places.items():
        line, column = positions[0]
        others = f" (and in {len(positions) - 1} other places)" if len(positions) > 1 else ""
        warn(f"{document.path}:{line}:{column}: {name} is now called {FORMER[name]}{others}")


def _field(location: Location) -> str:
    """The name of the field at a location; a text that is not a field name for other locations."""
    keys = [key for key in location if isinstance(key, str)]
    return ".".join(keys[_BEFORE.get(keys[0], len(keys)) :]) if keys else ""


def _rename_words(document: Document) -> None:
    """Replace former values of fields by present ones. A former split-K value also drops ``splits``."""
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
    """Warn about a former name. Python shows equal warnings once."""
    warnings.warn(f"{message}; the former name is still accepted", RenamedWarning, stacklevel=2)


def _move(document: Document, moves: Mapping[Location, str]) -> None:
    """Rename the keys at some locations."""
    for old in sorted(moves, key=len, reverse=True):  # innermost first, while the outer keys still have their old names
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
        content = {moved(location): entry for location, entry in table.items()}
        table.clear()
        table.update(content)
    document.invalid = {moved(location) for location in document.invalid}
