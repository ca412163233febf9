"""What the page lists: the kernels of a store, read as far as they are not known yet."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

_READ_AT_ONCE = 300
"""Kernels that one look at the page reads: half a second."""
FILTERS = {"arch": "Architecture", "types": "Types of A, B, D", "tile": "Tile", "schedule": "Schedule"}
"""Fields of rows that kernels are filtered by, and what they are called."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel in the list."""

    name: str
    key: str
    arch: str
    types: str
    """Of A, B and D."""
    tile: str
    schedule: str
    registers: int
    shared_bytes: int
    bytes: int


class Catalogue:
    """The kernels of a store, by key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, Row | None] = {}
        """None of an entry that is damaged."""

    def rows(self, filters: Mapping[str, str]) -> tuple[list[Row], int]:
        """Kernels that pass, by name, and how many were not looked at yet.

        Args:
            filters: those of :data:`FILTERS`, as rows have them, and ``words``, all of which the name must have.
        """
        entries = {entry.key: entry for entry in self._store.list()}
        self._rows = {key: row for key, row in self._rows.items() if key in entries}
        unknown = [entry for key, entry in entries.items() if key not in self._rows]
        for entry in unknown[:_READ_AT_ONCE]:
            self._rows[entry.key] = None
            with suppress(OSError, ValueError):
                self._rows[entry.key] = _row(entry.key, self._store.load(entry), entry.bytes)
        words = filters.get("words", "").lower().split()
        rows = [
            row
            for row in self._rows.values()
            if row is not None
            and all(filters.get(field) in (None, "", getattr(row, field)) for field in FILTERS)
            and all(word in row.name for word in words)
        ]
        return sorted(rows, key=lambda row: row.name), len(unknown[_READ_AT_ONCE:])

    def values(self, field: str) -> list[str]:
        """What a field of the rows has, to choose from."""
        return sorted({str(getattr(row, field)) for row in self._rows.values() if row is not None})


def _row(key: str, artifact: Artifact, size: int) -> Row:
    config, used = artifact.config, artifact.resources
    return Row(
        name=artifact.name,
        key=key,
        arch=config.arch,
        types=f"{config.a.dtype} {config.b.dtype} {config.d.dtype}",
        tile=f"{config.tile.m}x{config.tile.n}x{config.tile.k}",
        schedule=config.schedule,
        registers=used.registers,
        shared_bytes=used.static_shared_bytes + used.dynamic_shared_bytes,
        bytes=size,
    )
