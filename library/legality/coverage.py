"""Coverage tables: which operand types and layouts each schedule supports, and which rule excludes the others.

The tables are computed by a search of the legal configs. ``gemmill list --coverage`` prints them, and the docs page
``coverage`` is generated from them (``docs/conf.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gemmill.library.config.domains import WORDS
from gemmill.library.config.fields import Value
from gemmill.library.config.model import FAMILIES
from gemmill.library.legality.rules import DOMAINS
from gemmill.library.legality.search import legal_values, obstacle

OK = "ok"
"""The text of a cell with at least one legal kernel. Other cells hold the id of the rule that excludes it."""
MAJORS = (*itertools.product(("k", "mn"), repeat=2), ("any", "any"))
"""Majors of A and B. ``any`` means arbitrary strides along both extents."""


@dataclass(frozen=True, slots=True)
class Row:
    """Requested field values, and for each schedule whether a legal kernel has them."""

    given: Mapping[str, Value]
    """The requested fields. ``a.major`` and ``b.major`` describe a problem: kernels for ``any`` strides count."""
    cells: Mapping[str, str]
    """By schedule: :data:`OK` or the id of a rule."""


@dataclass(frozen=True, slots=True)
class Table:
    """One view of the legal space."""

    title: str
    columns: tuple[str, ...]
    """Headings of the columns before the schedules."""
    rows: tuple[Row, ...]

    def merged(self) -> list[tuple[str, ...]]:
        """The rows as text. Rows with equal cells are merged."""
        return [(*labels, *cells) for labels, cells in _LABELS[self.title](self.rows)]


def schedules() -> tuple[str, ...]:
    """The columns of each table: every schedule, in the order of the families."""
    return tuple(FAMILIES)


def tables() -> tuple[Table, ...]:
    """All tables: operands by type and majorness, outputs by type, targets, and batches by decomposition of K."""
    return (
        Table("Operands", ("A x B", "sums in", "A, B major"), tuple(_operands())),
        Table("Outputs", ("sums in", "D"), tuple(_outputs())),
        Table("Targets", ("arch", "A and B"), tuple(_targets())),
        Table("Batches and slices of K", ("batch", "K"), tuple(_schedulers())),
    )


_Values: TypeAlias = tuple[Value, ...]


class _Legal:
    """The values of some fields that legal configs have, by schedule."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._values = {schedule: {*legal_values(names, {"schedule": schedule})} for schedule in schedules()}

    def values(self, *names: str) -> list[_Values]:
        """The values of some of the fields that any schedule supports, in the order of their domains."""
        at = [self.names.index(name) for name in names]
        found = {tuple(values[i] for i in at) for legal in self._values.values() for values in legal}
        return sorted(found, key=lambda values: [*map(tuple.index, map(DOMAINS.__getitem__, names), values)])

    def row(self, *values: Value) -> Row:
        """The row of values of all fields."""
        fields = dict(zip(self.names, values, strict=True))
        return Row(fields, {schedule: self._cell(schedule, fields) for schedule in self._values})

    def _cell(self, schedule: str, fields: Mapping[str, Value]) -> str:
        served = ((value, "any") if name.endswith("major") else (value,) for name, value in fields.items())
        if not self._values[schedule].isdisjoint(itertools.product(*served)):
            return OK
        rule = obstacle({"schedule": schedule, **fields})
        assert rule is not None, f"{dict(fields)} is legal, though not with strides of any kind"
        return rule.id


def _operands() -> Iterable[Row]:
    legal = _Legal("a.dtype", "b.dtype", "accumulator", "promote", "a.scale", "b.scale", "a.major", "b.major")
    multiplied = legal.values(*legal.names[:6])
    return itertools.starmap(legal.row, ((*values, *majors) for values in multiplied for majors in MAJORS))


def _outputs() -> Iterable[Row]:
    legal = _Legal("accumulator", "d.dtype")
    sums, outputs = map(legal.values, legal.names)
    return itertools.starmap(legal.row, ((*accumulator, *d) for accumulator in sums for d in outputs))


def _targets() -> Iterable[Row]:
    legal = _Legal("arch", "a.dtype", "b.dtype")
    pairs = [pair for pair in legal.values("a.dtype", "b.dtype") if len({*pair}) == 1]
    return itertools.starmap(legal.row, ((arch, *pair) for arch in WORDS["arch"] for pair in pairs))


def _schedulers() -> Iterable[Row]:
    legal = _Legal("scheduler.batching", "scheduler.decomposition")
    return itertools.starmap(legal.row, itertools.product(*map(WORDS.__getitem__, legal.names)))


_Labelled = Iterable[tuple[tuple[str, ...], tuple[str, ...]]]


def _operand_labels(rows: Sequence[Row]) -> _Labelled:
    """Merge pairs of types with equal cells for all majors; then merge equal rows across accumulators."""
    answers: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        pairing = f"{row.given['a.dtype']} x {row.given['b.dtype']}"
        answers.setdefault((pairing, _sums(row.given)), []).append(row)
    pairings_by_cells: dict[tuple[str, tuple[tuple[str, ...], ...]], list[str]] = {}
    for (pairing, sums), members in answers.items():
        pairings_by_cells.setdefault((sums, tuple(tuple(row.cells.values()) for row in members)), []).append(pairing)
    merged: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (sums, cells), pairings in pairings_by_cells.items():
        for answer in dict.fromkeys(cells):
            majors = [" x ".join(pair) for pair, other in zip(MAJORS, cells, strict=True) if other == answer]
            label = "all" if len(majors) == len(MAJORS) else _product(majors)
            merged.setdefault((_product(pairings), label, answer), []).append(sums)
    for (pairing, majors_label, answer), sums_of in merged.items():
        yield (pairing, " · ".join(sums_of), majors_label), answer


def _sums(fields: Mapping[str, Value]) -> str:
    """The accumulator type, with two-level accumulation and scales if used."""
    scales = [str(fields[f"{operand}.scale"]) for operand in "ab"]
    two_level = ", two-level" if fields["promote"] else ""
    scaled = f", scaled {' by '.join(scale for scale in scales if scale != 'none')}" if set(scales) != {"none"} else ""
    return f"{fields['accumulator']}{two_level}{scaled}"


def _product(pairings: Sequence[str]) -> str:
    """Pairs ``a x b`` written as few products of lists: left sides with equal right sides are merged."""
    rights: dict[str, list[str]] = {}
    for pairing in pairings:
        left, right = pairing.split(" x ")
        rights.setdefault(left, []).append(right)
    lefts: dict[tuple[str, ...], list[str]] = {}
    for left, others in rights.items():
        lefts.setdefault(tuple(others), []).append(left)
    return " · ".join(f"{', '.join(left)} x {', '.join(right)}" for right, left in lefts.items())


def _output_labels(rows: Sequence[Row]) -> _Labelled:
    types_by_cells: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        key = str(row.given["accumulator"]), tuple(row.cells.values())
        types_by_cells.setdefault(key, []).append(str(row.given["d.dtype"]))
    for (accumulator, cells), outputs in types_by_cells.items():
        yield (accumulator, ", ".join(outputs)), cells


def _target_labels(rows: Sequence[Row]) -> _Labelled:
    """Merge types with equal cells within a target; then merge targets with equal rows."""
    types_by_cells: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        types_by_cells.setdefault((str(row.given["arch"]), tuple(row.cells.values())), []).append(
            str(row.given["a.dtype"])
        )
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (arch, cells), dtypes in types_by_cells.items():
        merged.setdefault((", ".join(dtypes), cells), []).append(arch)
    for (dtypes_label, cells), archs in merged.items():
        yield (", ".join(archs), dtypes_label), cells


def _scheduler_labels(rows: Sequence[Row]) -> _Labelled:
    for row in rows:
        fields = row.given
        yield (str(fields["scheduler.batching"]), str(fields["scheduler.decomposition"])), tuple(row.cells.values())


_LABELS = {
    "Operands": _operand_labels,
    "Outputs": _output_labels,
    "Targets": _target_labels,
    "Batches and slices of K": _scheduler_labels,
}


def coverage_tables() -> Iterator[str]:
    """The lines of all tables in Markdown, under a heading each."""
    for table in tables():
        heads = (*table.columns, *schedules())
        yield from (f"## {table.title}", "", _line(heads), "|" + "---|" * len(heads), *map(_line, table.merged()), "")


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
