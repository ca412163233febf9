"""Grids of candidate configs: the cross product of axes, never written out, judged by broadcasting.

A predicate reads a few members of a config, and parts of its plan (:class:`gemmill.library.config.fields.part`), as
evaluating it shows. It is
evaluated once for each distinct combination of what it reads that the grid holds, and the outcome broadcast over the
rest. ``stages`` may be ``"auto"`` alone: it then is
:func:`gemmill.library.families.families.resolved_stages`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemmill.library.config.fields import FIELD_NAMES, ConfigView, Known, Reader, UnreadError, Value
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import ExpressionError
from gemmill.library.families.families import resolved_stages

BLOCK_CELLS = 1 << 20
"""Most cells of a grid that are held in memory at a time."""

MAX_READ = 1 << 21
"""Most combinations of values of the fields that one predicate reads: each may take an evaluation."""
Cells = tuple[slice, ...]
"""A block of cells: a slice of each axis."""
Predicate = Callable[[GemmConfig], bool]
"""A yes or no that reads a few fields of a config."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Fields that vary together, and the values they take."""

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]


AUTO = Axis(("stages",), (("auto",),))
"""The axis of a grid whose candidates have as many stages as fit."""


class _Column(NamedTuple):
    """What is read in the cells of a grid."""

    values: list[Any]
    """Each one once."""
    places: npt.NDArray[np.intp]
    """Where in :attr:`values`, with one dimension an axis; of length 1 where the axis makes no difference."""


@dataclass(frozen=True, slots=True)
class Table:
    """A predicate, or another function of fields, evaluated over a whole grid."""

    entries: npt.NDArray[Any]
    """Outcomes, with one dimension an axis; of length 1 where the axis makes no difference."""

    def over(self, cells: Cells) -> npt.NDArray[Any]:
        """Outcomes of a block of cells, broadcastable to its shape."""
        lengths = self.entries.shape
        return self.entries[tuple(cut if length > 1 else slice(1) for cut, length in zip(cells, lengths, strict=True))]


@dataclass(frozen=True, slots=True)
class Grid:
    """The cross product of axes, the last one varying fastest."""

    axes: tuple[Axis, ...]
    _columns: dict[Reader, _Column] = field(default_factory=dict, init=False, repr=False, compare=False)
    _common: Known = field(default_factory=Known, init=False, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Values of each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of candidates."""
        return math.prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields, axis by axis."""
        return tuple(name for axis in self.axes for name in axis.names)

    def values(self, name: str) -> set[Value]:
        """The values that a field takes."""
        columns = ((axis.values, axis.names.index(name)) for axis in self.axes if name in axis.names)
        return {value[column] for values, column in columns for value in values}

    def meets(self, other: Grid) -> bool:
        """Whether two grids over the same fields may share candidates: where they have the same axes, whether they
        share values of every one."""
        pairs = [*zip(self.axes, other.axes, strict=False)]
        if any(mine.names != its.names for mine, its in pairs):
            return True
        return all(mine.names == ("stages",) or set(mine.values) & set(its.values) for mine, its in pairs)

    def narrowed(self, predicate: Predicate) -> Grid | None:
        """The part of the grid that passes a predicate, where that reads but fields of one axis; None where it reads
        more."""
        along = None
        try:
            predicate(ConfigView(Known()))
        except UnreadError as unread:
            along = next((axis for axis in self.axes if unread.reader in axis.names and axis != AUTO), None)
        if along is None:
            return None
        try:
            kept = [
                values for values in along.values if predicate(ConfigView(Known(zip(along.names, values, strict=True))))
            ]
        except UnreadError:
            return None
        if len(kept) == len(along.values):
            return self
        return Grid(tuple(Axis(axis.names, tuple(kept)) if axis is along else axis for axis in self.axes))

    def tabulate(self, function: Callable[[GemmConfig], Any]) -> Table:
        """Evaluates a predicate, or another function of fields, over the grid; ExpressionError where the fields that it
        reads take more than :data:`MAX_READ` combinations of values."""
        values, places = self._evaluated(function)
        return Table(np.array(values)[places])

    def _column(self, reader: Reader) -> _Column:
        """A field or a part over the grid."""
        if reader not in self._columns:
            if reader == "stages" and AUTO in self.axes:
                column = self._evaluated(resolved_stages)
            else:
                column = self._field(reader) if isinstance(reader, str) else self._evaluated(reader)
            self._columns[reader] = column
        return self._columns[reader]

    def _field(self, name: str) -> _Column:
        (along,) = (axis for axis in self.axes if name in axis.names)
        shape = [len(axis.values) if axis is along else 1 for axis in self.axes]
        column = along.names.index(name)
        return _distinct([value[column] for value in along.values], np.arange(len(along.values)).reshape(shape))

    def _evaluated(self, function: Callable[[GemmConfig], Any]) -> _Column:
        """Evaluates a function once for each group of candidates that what it reads does not tell apart."""
        groups, places = [Known(self._common)], np.zeros([1] * len(self.axes), dtype=np.intp)
        while True:
            try:
                return _distinct([function(ConfigView(known)) for known in groups], places)
            except UnreadError as unread:
                reader = unread.reader
            values, its_places = self._column(reader)
            if len(values) == 1:
                for known in (self._common, *groups):
                    known[reader] = values[0]
                continue
            if math.prod(np.broadcast_shapes(places.shape, its_places.shape)) > MAX_READ:
                raise ExpressionError(f"fields read together take more than {MAX_READ:,} combinations of values")
            pairs, where = np.unique(keys := places * len(values) + its_places, return_inverse=True)
            split = (divmod(pair, len(values)) for pair in pairs.tolist())
            groups, places = [Known({**groups[g], reader: values[v]}) for g, v in split], where.reshape(keys.shape)

    def blocks(self, cells: int = BLOCK_CELLS) -> Iterator[Cells]:
        """Cuts the grid, in order, into blocks of at most ``cells`` cells."""
        return _blocks(self.shape, cells)

    def candidates(self, cells: Cells, chosen: npt.NDArray[np.bool_]) -> Iterator[dict[str, Value]]:
        """The fields of the chosen cells of a block, in order."""
        starts = [cut.start for cut in cells]
        stages = np.broadcast_to(self.tabulate(attrgetter("stages")).over(cells), chosen.shape)[chosen]
        for cell, number in zip(np.argwhere(chosen).tolist(), stages.tolist(), strict=True):
            merged = {
                name: value
                for axis, start, index in zip(self.axes, starts, cell, strict=True)
                for name, value in zip(axis.names, axis.values[start + index], strict=True)
            }
            yield {name: number if name == "stages" else merged[name] for name in FIELD_NAMES}


def _distinct(values: Sequence[Any], places: npt.NDArray[np.intp]) -> _Column:
    """The column of these values at these places, some of which may be equal."""
    indices = {value: index for index, value in enumerate(dict.fromkeys(values))}
    if len(indices) == 1:
        return _Column(list(indices), np.zeros([1] * places.ndim, dtype=np.intp))
    return _Column(list(indices), np.array([indices[value] for value in values])[places])


def _blocks(shape: tuple[int, ...], cells: int) -> Iterator[Cells]:
    if math.prod(shape) <= cells:
        yield tuple(slice(0, length) for length in shape)
        return
    inner = math.prod(shape[1:])
    step = max(1, cells // max(1, inner))
    for start in range(0, shape[0], step):
        cut = slice(start, min(start + step, shape[0]))
        for rest in _blocks(shape[1:], cells):
            yield (cut, *rest)
