"""Grids of candidate configs: the cross product of axes, never written out, judged by broadcasting.

A predicate reads a few fields. It is evaluated once for each distinct combination of those fields that the grid holds,
and the outcome broadcast over the rest. ``stages`` may be ``"auto"``: it then follows from the fields that
:func:`gemmill.library.footprint.auto_stages` reads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmill.library.fields import FIELD_NAMES, Fields, Value
from gemmill.library.footprint import AUTO_STAGES_FIELDS, MIN_STAGES, auto_stages

BLOCK_CELLS = 1 << 20
"""Most cells of a grid that are held in memory at a time."""

Cells = tuple[slice, ...]
"""A block of cells: a slice of each axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Fields that vary together, and the values they take."""

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A yes or no that reads a few fields of a config."""

    fields: tuple[str, ...]
    check: Callable[[Fields], bool]


@dataclass(frozen=True, slots=True)
class Table:
    """A predicate evaluated over a whole grid: one entry for each distinct combination of the fields it reads."""

    entries: npt.NDArray[np.bool_]
    """Outcomes, with one dimension an axis; of length 1 where the predicate does not read the axis."""
    positions: tuple[npt.NDArray[np.intp], ...]
    """For each value of each axis, its index in :attr:`entries`."""

    def over(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Outcomes of a block of cells, broadcastable to its shape."""
        if self.entries.size == 1:
            return self.entries
        index = [
            where[cut] if length > 1 else where[:1]
            for where, cut, length in zip(self.positions, cells, self.entries.shape, strict=True)
        ]
        outcomes: npt.NDArray[np.bool_] = self.entries[np.ix_(*index)]
        return outcomes


@dataclass(frozen=True, slots=True)
class Grid:
    """The cross product of axes, the last one varying fastest."""

    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Values of each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of candidates."""
        return math.prod(self.shape)

    @property
    def auto_stages(self) -> bool:
        """Whether some candidates leave ``stages`` to be computed."""
        return any(axis.names == ("stages",) and ("auto",) in axis.values for axis in self.axes)

    def values(self, name: str) -> set[Value]:
        """The values that a field takes."""
        columns = ((axis.values, axis.names.index(name)) for axis in self.axes if name in axis.names)
        return {value[column] for values, column in columns for value in values}

    def meets(self, other: Grid) -> bool:
        """Whether two grids over the same fields may share candidates: whether they share values of every axis."""
        pairs = zip(self.axes, other.axes, strict=True)
        return all(mine.names == ("stages",) or set(mine.values) & set(its.values) for mine, its in pairs)

    def tabulate(self, predicate: Predicate) -> Table:
        """Evaluates a predicate over the grid."""
        auto = "stages" in predicate.fields and self.auto_stages
        wanted = {*predicate.fields, *(AUTO_STAGES_FIELDS if auto else ())}
        parts: list[list[dict[str, Value]]] = []
        positions = []
        for axis in self.axes:
            columns = [column for column, name in enumerate(axis.names) if name in wanted]
            seen: dict[tuple[Value, ...], int] = {}
            where = [seen.setdefault(tuple(v[column] for column in columns), len(seen)) for v in axis.values]
            names = [axis.names[column] for column in columns]
            parts.append([dict(zip(names, values, strict=True)) for values in seen])
            positions.append(np.array(where, dtype=np.intp))
        outcomes = (predicate.check(resolved(_merged(part))) for part in itertools.product(*parts))
        shape = [len(part) for part in parts]
        entries = np.fromiter(outcomes, dtype=np.bool_, count=math.prod(shape)).reshape(shape)
        return Table(entries, tuple(positions))

    def blocks(self, cells: int = BLOCK_CELLS) -> Iterator[Cells]:
        """Cuts the grid, in order, into blocks of at most ``cells`` cells."""
        return _blocks(self.shape, cells)

    def candidates(self, cells: Cells, chosen: npt.NDArray[np.bool_]) -> Iterator[dict[str, Value]]:
        """The fields of the chosen cells of a block, in order."""
        starts = [cut.start for cut in cells]
        for cell in np.argwhere(chosen).tolist():
            merged = {
                name: value
                for axis, start, index in zip(self.axes, starts, cell, strict=True)
                for name, value in zip(axis.names, axis.values[start + index], strict=True)
            }
            yield resolved({name: merged[name] for name in FIELD_NAMES})


def resolved(fields: dict[str, Value]) -> dict[str, Value]:
    """The fields with ``stages: auto`` replaced by a number: at least 2, so that a rule can say what does not fit."""
    if fields.get("stages") == "auto":
        return {**fields, "stages": max(MIN_STAGES, auto_stages(fields))}
    return fields


def _merged(parts: Sequence[dict[str, Value]]) -> dict[str, Value]:
    merged: dict[str, Value] = {}
    for part in parts:
        merged.update(part)
    return merged


def _blocks(shape: tuple[int, ...], cells: int) -> Iterator[Cells]:
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    step = max(1, cells // max(1, inner))
    for start in range(0, shape[0], step):
        cut = slice(start, min(start + step, shape[0]))
        for rest in _blocks(shape[1:], cells):
            yield (cut, *rest)
