"""Former names of fields in manifests: read as the present ones, with a warning that says which."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from gemmill.library.config.table import FORMER
from gemmill.library.errors import RenamedWarning
from gemmill.library.manifest.document import Document, Location

_BEFORE: Mapping[str, int] = {"defaults": 1, "sets": 1, "presets": 3}
"""Keys on the way from the root of a manifest to the choices of a set, by the first."""


def rename(document: Document) -> None:
    """Gives fields that a document calls by former names their present ones, where they stand.

    One warning for each former name says where it first stands. A field that has both is a fault.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for location in [*document.keys]:
        keys = [key for key in location if isinstance(key, str)]
        name = ".".join(keys[_BEFORE.get(keys[0], len(keys)) :])
        if name not in FORMER:
            continue
        places.setdefault(name, []).append(document.keys[location])
        present = (*location[:-1], FORMER[name].rpartition(".")[2])
        if present in document.keys:
            document.fault(location, f"is the former name of {present[-1]}, which stands here too; remove it", key=True)
        _move(document, location, present)
    for name, found in places.items():
        line, column = found[0]
        others = f", as in {len(found) - 1} other places" if len(found) > 1 else ""
        warn(f"{document.path}:{line}:{column}: {name} is now called {FORMER[name]}{others}")


def warn(message: str) -> None:
    """Warns of a former name; Python shows equal warnings once."""
    warnings.warn(f"{message}; the former name is still read", RenamedWarning, stacklevel=2)


def _move(document: Document, old: Location, new: Location) -> None:
    """Gives what stands at a key another key."""
    holder: Any = document.data
    for key in old[:-1]:
        holder = holder[key]
    renamed = {new[-1] if key == old[-1] else key: value for key, value in holder.items() if key != new[-1]}
    holder.clear()
    holder.update(renamed)
    tables: tuple[dict[Location, Any], ...] = (document.values, document.keys, document.written)
    for table in tables:
        for location in [location for location in table if location[: len(old)] == old]:
            table[(*new, *location[len(old) :])] = table.pop(location)
    document.invalid = {(*new, *at[len(old) :]) if at[: len(old)] == old else at for at in document.invalid}
