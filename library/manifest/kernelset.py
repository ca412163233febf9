"""Kernel sets: grids of candidates that are filtered, checked by the rules, deduplicated, and expanded lazily.

The order of the configs depends only on the manifest: grids follow the order of the manifest, and the last field of a
config varies fastest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from gemmill.library.config.fields import READERS, Value, config_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import ManifestError
from gemmill.library.families.families import resolved_stages
from gemmill.library.legality.rule import Rule
from gemmill.library.legality.rules import RULES
from gemmill.library.manifest import expression
from gemmill.library.manifest.grid import AUTO, Axis, Cells, Grid, Predicate, Table
from gemmill.library.wording import suggest

SMALL = 1 << 8
"""Most cells of a grid that is expanded together with others."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Count:
    """How many candidates of a kernel set are filtered, refused, duplicates and legal; these numbers add up to all."""

    candidates: int
    """Cells of all grids."""
    filtered: int
    """Candidates that a ``where`` filter or the preset excludes."""
    refused_by_rule: Mapping[str, int]
    """Refused candidates by the id of the first rule that they break; without rules that refuse none."""
    legal: int
    """Kernels."""
    duplicates: int
    """Legal candidates that are equal to an earlier one."""


@dataclass(frozen=True)
class Candidates:
    """One set of a manifest: a grid and its filters."""

    grid: Grid
    """The cross product. ``stages`` is an axis of numbers, or only ``auto``, so that no kernel occurs twice."""
    where: tuple[Predicate, ...]
    """The filters. A candidate must pass all of them."""

    @cached_property
    def passing(self) -> tuple[Table, ...]:
        """The filters, evaluated over the grid."""
        return tuple(self.grid.tabulate(predicate) for predicate in self.where)

    @cached_property
    def rules(self) -> tuple[tuple[Rule, Table], ...]:
        """The rules that refuse at least one cell of the grid, evaluated over the grid: true if a cell meets the
        rule."""
        schedules = [str(schedule) for schedule in self.grid.values("schedule")]
        concerning = (rule for rule in RULES if any(map(rule.concerns, schedules)))
        tables = ((rule, self.grid.tabulate(rule.allows)) for rule in concerning)
        return tuple((rule, table) for rule, table in tables if not table.entries.all())

    @cached_property
    def members(self) -> tuple[Predicate, ...]:
        """Predicates that a config meets if and only if it is one of these candidates."""
        axes = [member(axis.names, axis.values) for axis in self.grid.axes]
        # Evaluated over grids of other sets: a config for which a filter divides by zero is no candidate of this set.
        return (*axes, *(expression.guarded(predicate, axes) for predicate in self.where))

    def narrowed(self, predicates: Sequence[Predicate]) -> tuple[Candidates, tuple[Predicate, ...]]:
        """The candidates with axes limited to values that pass, and the predicates that read more than one axis."""
        grid, multi_axis = self.grid, []
        for predicate in predicates:
            if (part := grid.narrowed(predicate)) is None:
                multi_axis.append(predicate)
            else:
                grid = part
        return self if grid is self.grid else Candidates(grid, self.where), tuple(multi_axis)

    def any(self, rules: bool = True) -> bool:
        """Whether any candidate passes the filters and, with ``rules``, meets all rules."""
        tables = [*self.passing, *(table for _, table in (self.rules if rules else ()))]
        return not tables or any(_all(tables, cells).any() for cells in self.grid.blocks())


@dataclass(frozen=True, slots=True)
class Preset:
    """A named part of a kernel set: kernels that pass the filters and match one of the alternatives, if there are
    any."""

    description: str = ""
    where: tuple[Predicate, ...] = ()
    alternatives: tuple[tuple[Predicate, ...], ...] = ()


@dataclass(frozen=True)
class KernelSet:
    """The kernels that a manifest declares."""

    name: str
    description: str
    sets: tuple[Candidates, ...]
    presets: Mapping[str, Preset]
    limit: Preset = Preset()
    """The part of the candidates that the set consists of; by default all."""

    def __repr__(self) -> str:
        return f"<KernelSet {self.name} with presets {', '.join(self.presets)}>"

    def expand(self, preset: str | None = None, where: str | None = None, legal: bool = True) -> Iterator[GemmConfig]:
        """Generate the configs, each once, in an order that depends only on the manifest.

        Args:
            preset: only configs of this preset.
            where: only configs that pass this filter (:mod:`gemmill.library.manifest.expression`).
            legal: only configs that break no rule.

        Raises:
            ManifestError: there is no such preset, or no config is left.
            ExpressionError: ``where`` is not a filter.
        """
        choice = self.choice(preset, where)
        return self._expand(choice, legal, f"preset {preset}" if preset else "the set", where)

    def _expand(self, choice: Preset, legal: bool, whole: str, where: str | None) -> Iterator[GemmConfig]:
        empty = True
        narrowed = [candidates.narrowed(choice.where) for candidates in self.sets]
        nonempty = [(candidates, multi_axis) for candidates, multi_axis in narrowed if candidates.grid.size]
        sets = tuple(candidates for candidates, _ in nonempty)
        chosen_sets = [
            _Chosen(candidates, Preset("", multi_axis, choice.alternatives), sets[:index])
            for index, (candidates, multi_axis) in enumerate(nonempty)
        ]
        for chosen_set in _with_small_ones_together(chosen_sets):
            candidates = chosen_set.candidates
            for cells in candidates.grid.blocks():
                mask = chosen_set.filtered(cells)
                if not mask.any():
                    continue
                if legal:
                    for _, table in candidates.rules:
                        mask &= table.over(cells)
                mask &= ~chosen_set.repeated(cells)
                for fields in candidates.grid.candidates(cells, mask):
                    empty = False
                    yield config_of(fields)
        if empty:
            suffix = f" passes {where!r}" if where else " is legal"
            raise ManifestError(
                f"{self.name}: no kernel of {whole}{suffix}; run `gemmill list --count` to see the kernels"
            )

    def limited(self, preset: str | None, where: str | None) -> KernelSet:
        """The set with only the kernels of a preset that pass a filter, without presets.

        Raises:
            ManifestError: there is no such preset, or no kernel is left.
            ExpressionError: ``where`` is not a filter.
        """
        next(self.expand(preset, where))
        return replace(self, presets={}, limit=self.choice(preset, where))

    def count(self, preset: str | None = None, where: str | None = None) -> Count:
        """Count candidates, filtered, refused, duplicate and legal ones, without creating configs.

        Raises:
            ManifestError: there is no such preset.
            ExpressionError: ``where`` is not a filter.
        """
        choice = self.choice(preset, where)
        filtered = legal = duplicates = 0
        refused = {rule.id: 0 for rule in RULES}
        for index, candidates in enumerate(self.sets):
            chosen_set = _Chosen(candidates, choice, self.sets[:index])
            for cells in candidates.grid.blocks():
                mask = chosen_set.filtered(cells)
                remaining = int(mask.sum())
                filtered += mask.size - remaining
                for rule, table in candidates.rules:
                    mask &= table.over(cells)
                    passed = int(mask.sum())
                    refused[rule.id] += remaining - passed
                    remaining = passed
                mask &= ~chosen_set.repeated(cells)
                passed = int(mask.sum())
                duplicates += remaining - passed
                legal += passed
        return Count(
            candidates=sum(candidates.grid.size for candidates in self.sets),
            filtered=filtered,
            refused_by_rule={rule: number for rule, number in refused.items() if number},
            legal=legal,
            duplicates=duplicates,
        )

    def holds(self, preset: Preset) -> bool:
        """Whether a preset contains any kernel."""
        for candidates in self.sets:
            chosen_set = _Chosen(candidates, preset, ())
            for cells in candidates.grid.blocks():
                mask = chosen_set.filtered(cells)
                if mask.any() and (mask & _all([table for _, table in candidates.rules], cells)).any():
                    return True
        return False

    def choice(self, preset: str | None, where: str | None = None) -> Preset:
        """The filters of a preset and of ``where``; ManifestError if there is no such preset."""
        if preset is not None and preset not in self.presets:
            preset_names = ", ".join(self.presets) or "none"
            hint = suggest(preset, self.presets) or ";"
            raise ManifestError(f"{self.name} has no preset {preset!r}{hint} presets: {preset_names}")
        base_preset = self.presets[preset] if preset is not None else self.limit
        return Preset(base_preset.description, (*base_preset.where, *predicates(where)), base_preset.alternatives)


def _with_small_ones_together(sets: Sequence[_Chosen]) -> Iterator[_Chosen]:
    """The sets in order, with runs of consecutive small sets merged into one."""
    for is_small, run in itertools.groupby(sets, lambda chosen_set: chosen_set.candidates.grid.size <= SMALL):
        if not is_small:
            yield from run
            continue
        first, *others = run
        if rows := dict.fromkeys(row for chosen_set in (first, *others) for row in chosen_set.rows()):
            together = _with_stages(first.candidates.grid.names, rows)
            yield _Chosen(Candidates(together, ()), Preset(), first.before)


def _with_stages(names: tuple[str, ...], rows: Iterable[tuple[Value, ...]]) -> Grid:
    """A grid with one axis of the rows, each once and in order, with ``auto`` stages resolved."""
    at = names.index("stages")
    autos = [row for row in rows if row[at] == "auto"]
    others = Axis((*names[:at], *names[at + 1 :]), tuple((*row[:at], *row[at + 1 :]) for row in autos))
    stages = Grid((others, AUTO)).tabulate(attrgetter("stages")).entries if autos else np.array([])
    numbers = iter(np.broadcast_to(stages.ravel(), len(autos)).tolist())
    resolved_rows = ((*row[:at], next(numbers) if row[at] == "auto" else row[at], *row[at + 1 :]) for row in rows)
    return Grid((Axis(names, tuple(dict.fromkeys(resolved_rows))),))


def predicates(where: str | None) -> tuple[Predicate, ...]:
    """The predicates of a filter; none for None. Raises ExpressionError."""
    return () if where is None else tuple(e.check for e in expression.parse(where))


def member(names: tuple[str, ...], values: tuple[tuple[Value, ...], ...]) -> Predicate:
    """The predicate that fields have one of the values; for ``stages`` these can include ``"auto"``."""
    allowed = frozenset(values)
    if names == ("stages",) and ("auto",) in allowed:
        return lambda config: (config.stages,) in allowed or config.stages == resolved_stages(config)
    readers = [READERS[name] for name in names]
    return lambda config: tuple(read(config) for read in readers) in allowed


class _Chosen:
    """The filters of a preset for one set, and which candidates of the set are duplicates of earlier sets."""

    def __init__(self, candidates: Candidates, preset: Preset, before: tuple[Candidates, ...]) -> None:
        self.candidates, self.before, grid = candidates, before, candidates.grid
        self.filters = (*candidates.passing, *(grid.tabulate(predicate) for predicate in preset.where))
        self.alternatives = [[grid.tabulate(p) for p in alternative] for alternative in preset.alternatives]

    @cached_property
    def earlier(self) -> list[list[Table]]:
        """The membership predicates of earlier sets, evaluated over the grid."""
        grid = self.candidates.grid
        return [[grid.tabulate(p) for p in other.members] for other in self.before if other.grid.meets(grid)]

    def rows(self) -> Iterator[tuple[Value, ...]]:
        """The values of the candidates of a small grid that pass, in the order of :attr:`Grid.names`."""
        (cells,) = (grid := self.candidates.grid).blocks()
        chosen = itertools.compress(itertools.product(*(axis.values for axis in grid.axes)), self.filtered(cells).flat)
        return (tuple(itertools.chain.from_iterable(cell)) for cell in chosen)

    def filtered(self, cells: Cells) -> Mask:
        mask = _all(self.filters, cells)
        return mask & _any(self.alternatives, cells) if self.alternatives else mask

    def repeated(self, cells: Cells) -> Mask:
        return _any(self.earlier, cells)


def _shape(cells: Cells) -> tuple[int, ...]:
    return tuple(span.stop - span.start for span in cells)


def _all(tables: Sequence[Table], cells: Cells) -> Mask:
    mask = np.ones(_shape(cells), dtype=np.bool_)
    for table in tables:
        mask &= table.over(cells)
    return mask


def _any(alternatives: list[list[Table]], cells: Cells) -> Mask:
    mask = np.zeros(_shape(cells), dtype=np.bool_)
    for tables in alternatives:
        mask |= _all(tables, cells)
    return mask
