"""Chooses kernels by the choice tables of packs, without evaluating a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gemmill.library.config.batchings import GROUPED_EXTENT, MASKED
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel, check_slices
from gemmill.library.dtypes import SPLIT
from gemmill.library.epilogues.parse import unstaged
from gemmill.library.errors import ConfigError, PackError, UnsupportedProblemError
from gemmill.library.problem import MAX_EXTENT, GemmProblem, Regime
from gemmill.runtime.select.choice import Choice, in_words
from gemmill.runtime.select.choice_table import ALL_EXTENTS, EXTENTS, ChoiceTable, ExtentName, Layer, TableKernel
from gemmill.runtime.select.kernels.faults import faults
from gemmill.runtime.select.kernels.formats import FIELDS, format_of, format_of_problem, with_f32_sums

if TYPE_CHECKING:
    from gemmill.library.arithmetic import Arithmetic
    from gemmill.runtime.storage.pack import Pack

_PRECISE = MappingProxyType({"accumulator": "f32", "promote": 0})
"""Formats of kernels that also run problems with other values, which require less."""
_CACHED = 4096
"""Most problems whose choice is cached."""


class TableOfPack(NamedTuple):
    """A table, and what errors call its pack."""

    table: ChoiceTable
    pack: str


def chooser_of(packs: Sequence[Pack], gpu: str, objective: Regime, bits: str) -> tuple[TableChooser | None, str]:
    """Return the chooser over the tables of packs for a GPU, an objective and bits.

    Where a pack has no table, or no table is for these, return None, and why in words; where no pack has a table, the
    words are empty.
    """
    tables = [TableOfPack(pack.choices, str(pack.path)) for pack in packs if pack.choices]
    if lacking := [str(pack.path) for pack in packs if not pack.choices]:
        return None, f"{lacking[0]} has no choice table" if tables else ""
    wanted = gpu, objective, bits
    if fitting := [each for each in tables if (each.table.gpu, each.table.objective, each.table.bits) == wanted]:
        return TableChooser(fitting), ""
    table, pack = tables[0]
    names = zip(("gpu", "objective", "bits"), (table.gpu, table.objective, table.bits), wanted, strict=True)
    differs = " and ".join(f"{name} {has!r}, not {wants!r}" for name, has, wants in names if has != wants)
    return None, f"the choice table of {pack} is for {differs}"


class _Place(NamedTuple):
    """A layer of a table."""

    of: TableOfPack
    layer: Layer


class TableChooser:
    """Chooses kernels by the tables of packs, which have the same objective and bits; earlier packs come first."""

    def __init__(self, tables: Sequence[TableOfPack]) -> None:
        self._tables = tables
        self._exact: dict[tuple[object, ...], _Place] = {}
        self._by_word: dict[str, list[_Place]] = {}
        for table_of_pack in tables:
            table = table_of_pack.table
            for layer in table.layers:
                place, word = _Place(table_of_pack, layer), table.formats[layer.formats].word
                key = word, layer.extent, layer.extents, layer.aligns
                self._exact.setdefault(key, place)
                self._by_word.setdefault(word, []).append(place)
        self.choose: Callable[[GemmProblem, Arithmetic | None], Choice] = lru_cache(_CACHED)(self._choose)
        """The kernel for a problem; see :meth:`_choose`."""

    def _choose(self, problem: GemmProblem, arithmetic: Arithmetic | None) -> Choice:
        """Return the kernel for a problem, with the required arithmetic: that of the layer of the problem, or else of
        the nearest one that has a kernel for it.

        Raises:
            UnsupportedProblemError: no layer has the formats, or none of their kernels supports the problem.
            PackError: the table names a kernel that does not support the problem.
        """
        listed = self._with_listed_formats(problem)
        word = word_of(listed)
        places = self._by_word[word]
        _check_extents(listed, places[0])
        choice = self._of_layers(word, places, listed, arithmetic)
        if others := _differences(word_of(problem), word):
            choice = replace(choice, explain=partial(_of_others, choice.explain, others))
        return choice.answering(problem, None, arithmetic)

    def _of_layers(
        self, word: str, places: Sequence[_Place], problem: GemmProblem, arithmetic: Arithmetic | None
    ) -> Choice:
        """Return the kernel for a problem whose formats layers have; UnsupportedProblemError where there is none."""
        aligns = _aligns(problem)
        for extent in EXTENTS:
            key = word, extent, _extents_without(problem, extent), aligns
            if place := self._exact.get(key):
                row = place.layer.range_of(value_of(problem, extent))
                if choice := _choice(place, row, problem, arithmetic, is_exact=True):
                    return choice
        for place in sorted(places, key=lambda place: _distance(place.layer, problem)):
            row = place.layer.range_of(value_of(problem, place.layer.extent))
            for other in _nearest_first(row, len(place.layer.first)):
                if choice := _choice(place, other, problem, arithmetic, is_exact=False):
                    return choice
        raise self._refusal(problem, places, arithmetic)

    def _with_listed_formats(self, problem: GemmProblem) -> GemmProblem:
        """Return a problem with formats that layers have: its own or else, since such kernels support it too, those of
        all of a symmetric D, those of an epilogue whose matrices are read without TMA, and those of sums in f32.

        Raises:
            UnsupportedProblemError: no layer has any of them.
        """
        formats = [problem, problem.but(symmetry="general")]
        formats += [each.but(epilogue=unstaged(each.epilogue)) for each in formats]
        for other in chain(formats, filter(None, map(with_f32_sums, formats))):
            if word_of(other) in self._by_word:
                return other
        raise UnsupportedProblemError(
            f"no kernel supports {problem}: the choice table of {self._names} has no layer of its formats"
            f"{self._nearest_formats(problem)}. Make a pack for this problem (gemmill pack --problem), or pass a "
            "manifest in addition to the packs"
        )

    @property
    def _names(self) -> str:
        return ", ".join(dict.fromkeys(pack for _, pack in self._tables))

    def _nearest_formats(self, problem: GemmProblem) -> str:
        """Return in words how the formats of some layer differ least from those of a problem."""
        fewest = min(map(partial(_differences, word_of(problem)), self._by_word), key=len, default=None)
        return f"; the nearest has {', '.join(fewest)}" if fewest else ""

    def _refusal(
        self, problem: GemmProblem, places: Sequence[_Place], arithmetic: Arithmetic | None
    ) -> UnsupportedProblemError:
        """Return the error for a problem that no kernel of the layers of its formats supports."""
        layer = min((place.layer for place in places), key=lambda layer: _distance(layer, problem))
        if arithmetic is None:
            lack, way = "whose kernels need other alignments", "copy the operands into memory aligned to 16 bytes"
        else:
            lack, way = f"which has no kernel of arithmetic {arithmetic} for these alignments", "leave out bits"
        return UnsupportedProblemError(
            f"no kernel supports {problem}: the nearest layer in the choice table of {self._names} is {layer}, {lack}; "
            f"{way}, or make a pack for this problem (gemmill pack --problem)"
        )


def word_of(problem: GemmProblem) -> str:
    """Return the formats of a problem as :attr:`Formats.word`."""
    return " ".join("none" if value is None else str(value) for value in format_of_problem(problem))


def _values(word: str) -> list[str]:
    """Return the values in :attr:`Formats.word`; the last, the epilogue, may have spaces."""
    return word.split(" ", len(FIELDS) - 1)


def _differences(word: str, other: str) -> list[str]:
    """Return the fields that differ between two values of :attr:`Formats.word`, with their values in the second."""
    triples = zip(FIELDS, _values(word), _values(other), strict=True)
    return [f"{name} {second}" for name, first, second in triples if first != second]


def _of_others(explain: Callable[[], str], others: Sequence[str]) -> str:
    """Return the reason of a choice by layers of other formats."""
    return f"{explain()}; no layer has the formats of the problem, so those with {', '.join(others)} decide"


def value_of(problem: GemmProblem, extent: ExtentName) -> int:
    """Return the value of the extent that a layer leaves out; of an empty one 1."""
    if problem.batching in MASKED and GROUPED_EXTENT[problem.batching] == extent:
        problem = problem.typical()
    value: int = getattr(problem, extent)
    return max(value, 1)


def _aligns(problem: GemmProblem) -> tuple[int, ...]:
    return problem.a_align, problem.b_align, problem.c_align, problem.d_align


def _extents_without(problem: GemmProblem, extent: ExtentName) -> tuple[int, ...]:
    return tuple(0 if name == extent else getattr(problem, name) for name in ALL_EXTENTS)


def _check_extents(problem: GemmProblem, place: _Place) -> None:
    """Raise UnsupportedProblemError if the extents of a problem are impossible for its formats."""
    multiples = (*place.of.table.formats[place.layer.formats].multiples, 1)
    for name, multiple in zip(ALL_EXTENTS, multiples, strict=True):
        extent = getattr(problem, name)
        if type(extent) is not int or not 0 <= extent <= MAX_EXTENT:
            raise UnsupportedProblemError(f"{name} is {extent!r}; it must be a whole number from 0 to {MAX_EXTENT:,}")
        if extent % multiple:
            raise UnsupportedProblemError(f"{name} is {extent}; with these formats it must be a multiple of {multiple}")


def _distance(layer: Layer, problem: GemmProblem) -> float:
    """Return the product of the ratios of the extents that a layer has. Without logarithms, every reader of a pack gets
    the same order."""
    distance = 1.0
    for name, extent in zip(ALL_EXTENTS, layer.extents, strict=True):
        if name != layer.extent:
            other = max(getattr(problem, name), 1)
            distance *= max(extent, other) / min(extent, other)
    return distance


def _nearest_first(start: int, count: int) -> Iterator[int]:
    """Yield the indices below ``count``: ``start``, then its neighbours on both sides, the lower first."""
    yield start
    for step in range(1, count):
        for index in (start - step, start + step):
            if 0 <= index < count:
                yield index


def _choice(
    place: _Place, row: int, problem: GemmProblem, arithmetic: Arithmetic | None, *, is_exact: bool
) -> Choice | None:
    """Return the kernel of a range of a layer as the choice for a problem; None where it has another arithmetic, or
    needs other alignments."""
    (table, pack), layer = place
    kernel = table.kernels[layer.kernel[row]]
    if any(need > offer for need, offer in zip(kernel.aligns, _aligns(problem), strict=True)):
        return None
    config = _checked_config(kernel, problem, pack)
    if arithmetic is not None:
        from gemmill.library.arithmetic import arithmetic_of  # programs that require no arithmetic start faster

        if arithmetic_of(config, kernel.slices) != arithmetic:
            return None
    value = value_of(problem, layer.extent)
    us = layer.predicted_us(value) * prod(
        max(getattr(problem, name), 1) / extent
        for name, extent in zip(ALL_EXTENTS, layer.extents, strict=True)
        if extent
    )
    us *= min(problem.m, problem.n, problem.batch) > 0  # an empty D takes no time

    def explain() -> str:
        which = str(layer) if is_exact else f"the nearest layer, {layer},"
        beyond = f", beyond {layer.largest}, the largest that it was made for" if value > layer.largest else ""
        reason = f"the choice table of {pack} has it for {which} with {layer.range_in_words(row)}{beyond}"
        return f"{reason}: predicted {us:.1f} us{in_words(config, problem, kernel.swap_ab)}"

    sliced = SlicedKernel(kernel.name, kernel.slices)
    return Choice(sliced, config, explain, us, tuple, "table", kernel.swap_ab, problem, None, arithmetic)


def _checked_config(kernel: TableKernel, problem: GemmProblem, pack: str) -> GemmConfig:
    """Return the config of a kernel, after a check that it supports a problem; PackError where it does not. The kernel
    may be more precise than the problem requires."""
    try:
        config = parse_name(kernel.name)
        check_slices(config, kernel.slices)
    except ConfigError as error:
        raise PackError(f"{pack}: the choice table is invalid: {error}") from None
    values = dict(zip(FIELDS, format_of(config), strict=True))
    changes: dict[str, Any] = {name: value for name, value in _PRECISE.items() if values[name] == value}
    if problem.a_dtype in SPLIT and config.a.dtype == "f32":
        changes |= {"a_dtype": "f32", "b_dtype": "f32"}
    run = problem.but(**changes)
    if kernel.swap_ab and not problem.can_transpose:
        raise PackError(f"{pack}: the choice table transposes {problem}, which cannot be transposed")
    if needs := faults(config, run.transposed if kernel.swap_ab else run):
        raise PackError(
            f"{pack}: the choice table names {kernel.name} for {problem}, but it needs {' and '.join(needs)}"
        )
    return config
