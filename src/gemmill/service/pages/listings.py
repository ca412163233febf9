"""The in-memory lists behind the web pages: the kernels of the store, and recently requested problems."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from gemmill.library.arch import GPUS, Gpu
from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.service.bodies import known_gpu

_READ_AT_ONCE = 300
"""Maximum number of kernels read per request of the page; about half a second."""
_MOST_PROBLEMS = 200
"""Maximum number of remembered problems."""
FILTERS = {
    "arch": "Architecture",
    "types": "Types of A, B, D",
    "arithmetic": "Arithmetic",
    "tile": "Tile",
    "schedule": "Schedule",
}
"""Fields of rows that kernels are filtered by, and their labels."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel in the list."""

    name: str
    key: str
    arch: str
    types: str
    """Data types of A, B and D."""
    arithmetic: str
    """Name of the order of the sums; empty for edited kernels, whose source can change it."""
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
        """Rows of the kernels read so far, by key; None for a damaged entry."""

    def rows(self, filters: Mapping[str, str]) -> tuple[list[Row], int]:
        """The kernels that pass the filters, sorted by name, and the number of kernels not read yet.

        Args:
            filters: values of the fields in :data:`FILTERS`, and ``words``, all of which the name must contain.
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
        """All values of a field, for the choices of a filter."""
        return sorted({str(getattr(row, field)) for row in self._rows.values() if row is not None} - {""})


def _row(key: str, artifact: Artifact, size: int) -> Row:
    config, used = artifact.config, artifact.resources
    return Row(
        name=artifact.name,
        key=key,
        arch=config.arch,
        types=f"{config.a.dtype} {config.b.dtype} {config.d.dtype}",
        arithmetic=arithmetic_named(SlicedKernel(artifact.name, 0)) or "",
        tile=f"{config.tile.m}x{config.tile.n}x{config.tile.k}",
        schedule=config.schedule,
        registers=used.registers,
        shared_bytes=used.static_shared_bytes + used.dynamic_shared_bytes,
        bytes=size,
    )


@dataclass(slots=True)
class RequestedProblem:
    """A problem that clients requested for a GPU."""

    problem: str
    gpu: Gpu
    bits: str
    """Which bits the clients required."""
    choice: Choice
    """The result of the last request."""
    times: int
    """Number of requests."""
    last: float
    """Time of the last request, by the monotonic clock."""


class RequestedProblems:
    """The most recently requested problems, each with its number of requests."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str, str], RequestedProblem] = OrderedDict()

    def note(self, gpu: Gpu, choice: Choice, bits: str) -> None:
        """Count a request."""
        key = gpu.name, str(choice.problem), bits
        times = self._rows.pop(key).times if key in self._rows else 0
        self._rows[key] = RequestedProblem(key[1], gpu, bits, choice, times + 1, time.monotonic())
        if len(self._rows) > _MOST_PROBLEMS:
            self._rows.popitem(last=False)

    def gpu(self, name: str) -> Gpu:
        """A GPU by its name: of these requests, or one that gemmill has figures for; Refusal 422 for others."""
        described = {row.gpu.name: row.gpu for row in self._rows.values() if row.gpu.name not in GPUS}
        return described.get(name) or known_gpu(name)

    def rows(self, kernel: str = "") -> list[RequestedProblem]:
        """All problems, or those for which a kernel was selected, the most recent first."""
        return [row for row in reversed(self._rows.values()) if kernel in ("", row.choice.name)]
