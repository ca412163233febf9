"""Grids of candidate configs: cross products of axes, which are evaluated by broadcasting instead of enumeration.

A predicate reads a few members of a config, and parts of its plan (:class:`gemmill.library.config.fields.part`).
Evaluation discovers which. The predicate is evaluated once for each distinct combination of the values that it reads,
and the result is broadcast over the grid. If ``stages`` is ``"auto"``, its value is
:func:`gemmill.library.families.families.resolved_stages`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemmill.library.config.fields import ConfigView, GroupFields, Reader, UnreadError, Value
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import ExpressionError
from gemmill.library.families.families import resolved_stages

BLOCK_CELLS = 1 << 20
"""Most cells of a grid in memory at a time."""

MAX_READ = 1 << 21
"""Most combinations of values of the fields that one predicate reads. Each can need an evaluation."""
Cells = tuple[slice, ...]
"""A block of cells: a slice of each axis."""
Predicate = Callable[[GemmConfig], bool]
"""A condition on a few fields of a config."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Fields that vary together, and their combinations of values."""

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]


AUTO = Axis(("stages",), (("auto",),))
"""The axis of a grid whose candidates use as many stages as fit."""


class _Column(NamedTuple):
    """The values of a field or part over a grid."""

    values: list[Any]
    """The distinct values."""
    places: npt.NDArray[np.intp]
    """Indices into :attr:`values`, with one dimension per axis; its length is 1 if the value does not depend on the
    axis."""


@dataclass(frozen=True, slots=True)
class Table:
    """A predicate, or another function of fields, evaluated over a whole grid."""

    entries: npt.NDArray[Any]
    """Results, with one dimension per axis; its length is 1 if the result does not depend on the axis."""

    def over(self, cells: Cells) -> npt.NDArray[Any]:
        """The results for a block of cells, broadcastable to its shape."""
        lengths = self.entries.shape
        return self.entries[
            tuple(span if length > 1 else slice(1) for span, length in zip(cells, lengths, strict=True))
        ]


@dataclass(frozen=True)
class Grid:
    """The cross product of axes. The last axis varies fastest."""

    axes: tuple[Axis, ...]
    _columns: dict[Reader, _Column] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of values of each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of candidates."""
        return math.prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields, axis by axis."""
        return tuple(self._positions)

    @cached_property
    def _positions(self) -> dict[str, tuple[int, int]]:
        """For each field, the index of its axis and its index within that axis."""
        return {name: (index, place) for index, axis in enumerate(self.axes) for place, name in enumerate(axis.names)}

    def values(self, name: str) -> set[Value]:
        """The values of a field."""
        index, place = self._positions[name]
        return {value[place] for value in self.axes[index].values}

    @cached_property
    def _common(self) -> GroupFields:
        """The fields that all candidates have in common, and parts in common once they are evaluated."""
        common = GroupFields()
        for axis in self.axes:
            if axis != AUTO:
                columns = zip(axis.names, zip(*axis.values, strict=True), strict=False)
                common.update((name, column[0]) for name, column in columns if len(set(column)) == 1)
        return common

    def meets(self, other: Grid) -> bool:
        """Whether two grids can share candidates. False only if they have the same axes and share no value of an
        axis."""
        if self._positions != other._positions:
            return True
        return all(
            axis.names == ("stages",) or not mine.isdisjoint(theirs)
            for axis, mine, theirs in zip(self.axes, self._values, other._values, strict=True)
        )

    @cached_property
    def _values(self) -> list[frozenset[tuple[Value, ...]]]:
        """The set of values of each axis."""
        return [frozenset(axis.values) for axis in self.axes]

    def narrowed(self, predicate: Predicate) -> Grid | None:
        """The part of the grid that passes a predicate that reads fields of one axis; None if it reads more axes."""
        along = None
        try:
            predicate(ConfigView(GroupFields()))
        except UnreadError as unread:
            along = next((axis for axis in self.axes if unread.reader in axis.names and axis != AUTO), None)
        if along is None:
            return None
        try:
            groups = (GroupFields(zip(along.names, values, strict=True)) for values in along.values)
            passing = [
                values for values, fields in zip(along.values, groups, strict=True) if predicate(ConfigView(fields))
            ]
        except UnreadError:
            return None
        if len(passing) == len(along.values):
            return self
        return Grid(tuple(Axis(axis.names, tuple(passing)) if axis is along else axis for axis in self.axes))

    def tabulate(self, function: Callable[[GemmConfig], Any]) -> Table:
        """Evaluate a predicate or another function of fields over the grid. ExpressionError if the fields that it reads
        have more than :data:`MAX_READ` combinations of values."""
        values, places = self._evaluated(function)
        return Table(np.array(values)[places])

    def _column(self, reader: Reader) -> _Column:
        """The values of a field or part over the grid."""
        if reader not in self._columns:
            if reader == "stages" and AUTO in self.axes:
                column = self._evaluated(resolved_stages)
            else:
                column = self._field(reader) if isinstance(reader, str) else self._evaluated(reader)
            self._columns[reader] = column
        return self._columns[reader]

    def _field(self, name: str) -> _Column:
        index, place = self._positions[name]
        values = [value[place] for value in self.axes[index].values]
        shape = [1] * len(self.axes)
        shape[index] = len(values)
        return _distinct(values, np.arange(len(values)).reshape(shape))

    def _evaluated(self, function: Callable[[GemmConfig], Any]) -> _Column:
        """Evaluate a function once for each group of candidates that are equal in everything that it reads."""
        groups, places = [self._common], np.zeros([1] * len(self.axes), dtype=np.intp)
        while True:
            try:
                return _distinct([function(ConfigView(fields)) for fields in groups], places)
            except UnreadError as unread:
                reader = unread.reader
            values, places_of_values = self._column(reader)
            if len(values) == 1:
                for fields in (self._common, *groups):
                    fields[reader] = values[0]
                continue
            if math.prod(np.broadcast_shapes(places.shape, places_of_values.shape)) > MAX_READ:
                raise ExpressionError(f"the fields that it reads have more than {MAX_READ:,} combinations of values")
            pairs, inverse = np.unique(keys := places * len(values) + places_of_values, return_inverse=True)
            split = (divmod(pair, len(values)) for pair in pairs.tolist())
            groups, places = [groups[g].having(reader, values[v]) for g, v in split], inverse.reshape(keys.shape)

    def blocks(self, cells: int = BLOCK_CELLS) -> Iterator[Cells]:
        """Divide the grid, in order, into blocks of at most ``cells`` cells."""
        return _blocks(self.shape, cells)

    def candidates(self, cells: Cells, chosen: npt.NDArray[np.bool_]) -> Iterator[dict[str, Value]]:
        """The fields of the chosen cells of a block."""
        starts = [span.start for span in cells]
        stages = np.broadcast_to(self.tabulate(attrgetter("stages")).over(cells), chosen.shape)[chosen]
        for cell, number in zip(np.argwhere(chosen).tolist(), stages.tolist(), strict=True):
            merged = {
                name: value
                for axis, start, index in zip(self.axes, starts, cell, strict=True)
                for name, value in zip(axis.names, axis.values[start + index], strict=True)
            }
            yield {**merged, "stages": number}


def _distinct(values: Sequence[Any], places: npt.NDArray[np.intp]) -> _Column:
    """The column with these values at these places, with equal values merged."""
    if len(values) == 1:
        return _Column([*values], np.zeros([1] * places.ndim, dtype=np.intp))
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
        span = slice(start, min(start + step, shape[0]))
        for rest in _blocks(shape[1:], cells):
            yield (span, *rest)
