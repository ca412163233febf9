"""Collect the distinct problems of a file with their counts, and notes on what the problems lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from gemmill.library.errors import RecordError
from gemmill.library.problem import MAX_EXTENT

MAX_PROBLEMS = 100_000
"""Maximum number of distinct problems in a file."""
MOST_NAMED = 20
"""Maximum number of different notes of a kind; the others are only counted."""
_OTHERS = ""
"""The text of the note that counts those beyond :data:`MOST_NAMED`."""
_EXTENTS = ("m", "n", "k", "batch", "groups")
_MAX_COUNT = 1 << 62
_MOST_DIGITS = 18
MAX_JSON = 16 << 20
"""Maximum size of a JSON text; a hundred thousand problems take less."""
LONGEST_LINE = 20_000
"""Maximum length of a line; longer lines are skipped."""

Fields = Mapping[str, int | str]
"""Keywords of a problem, as in its text form."""


@dataclass(frozen=True)
class TextFile:
    """A text, with extents that its format may lack."""

    path: Path
    """Path of the file, for messages; one format has extents in the name of the file."""
    text: str
    m: Sequence[int] = ()
    """Values of M for formats without M."""
    k: Sequence[int] = ()
    """Values of K for formats without K."""
    top_k: int | None = None
    """Experts of each token, for formats without this number."""

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text. Lines that are too long are empty, since patterns could take forever on them."""
        return [line if len(line) <= LONGEST_LINE else "" for line in self.text.split("\n")]


class LeftOut(Exception):
    """Raised for an entry of a file that is skipped, since it is not supported or incomplete."""


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """A problem of a file."""

    fields: Fields
    """The keywords in the file: ``m``, ``n``, ``k``, ``batch``, dtypes ``a`` to ``d``, majors, ``accumulator``, scales,
    ``batching``, ``groups``, ``epilogue``. Missing keywords are unknown."""
    count: int = 1
    """How often the problem ran, or is listed."""
    where: str = ""
    """``file:line`` of its first occurrence."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a problem lacks of its entry in the file, or what it has beyond it."""

    why: str
    is_assumed: bool = False
    """Whether the file lacks this, and gemmill assumes it. Otherwise it is in the file, and gemmill leaves it out."""
    where: str = ""
    """``file:line`` of the first such entry."""
    count: int = 1

    def __str__(self) -> str:
        if self.why == _OTHERS:
            return f"{self.where}: and {self.count:,} more"
        return f"{self.where}: {self.why}" + (f" ({self.count:,} times)" if self.count > 1 else "")


@dataclass(frozen=True, slots=True)
class Imported:
    """The problems of a file."""

    problems: tuple[ListedProblem, ...] = ()
    """Distinct problems, in the order of their first occurrence."""
    notes: tuple[Note, ...] = ()
    """Different notes, in the order of their first occurrence."""
    format: str = ""
    """The name of the format, such as ``a trace of PyTorch's profiler``."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is in the file and not in a problem: whole entries, or parts of them."""
        return tuple(str(note) for note in self.notes if not note.is_assumed)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the file lacks and gemmill assumes."""
        return tuple(str(note) for note in self.notes if note.is_assumed)


class Collector:
    """Collects the problems and notes of one file, or of several; merges equal problems and equal notes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._problems: dict[tuple[tuple[str, int | str], ...], tuple[int, str]] = {}
        self._notes: dict[bool, dict[str, tuple[int, str]]] = {False: {}, True: {}}

    def add(self, fields: Fields, line: int, count: int = 1) -> None:
        """Add a problem; LeftOut if an extent is missing or out of range."""
        if missing := [key for key in _EXTENTS[:3] if key not in fields]:
            raise LeftOut(f"missing {', '.join(missing)}")
        for key in _EXTENTS:
            if key in fields and not 1 <= int(fields[key]) <= MAX_EXTENT:
                raise LeftOut(f"{key} is {fields[key]}; it must be from 1 to {MAX_EXTENT:,}")
        if not 1 <= count <= _MAX_COUNT:
            raise LeftOut(f"the count is {count:,}; it must be from 1 to {_MAX_COUNT:,}")
        self._count(ListedProblem(fields, count, f"{self.path}:{line}"))
        if len(self._problems) > MAX_PROBLEMS:
            raise self.error(line, f"the file has more than {MAX_PROBLEMS:,} distinct problems; split it")

    def _count(self, listed: ListedProblem) -> None:
        identity = tuple(sorted((key, value) for key, value in listed.fields.items() if (key, value) != ("batch", 1)))
        previous, where = self._problems.get(identity, (0, listed.where))
        self._problems[identity] = previous + listed.count, where

    def note(self, note: Note) -> None:
        """Add a note; further ones of the same text only count."""
        named = self._notes[note.is_assumed]
        why = note.why if note.why in named or len(named) < MOST_NAMED else _OTHERS
        count, where = named.get(why, (0, note.where if why else str(self.path)))
        named[why] = count + note.count, where

    @contextmanager
    def at(self, line: int) -> Iterator[Entry]:
        """The entry at a line; LeftOut becomes a note."""
        entry = Entry(self, line)
        try:
            yield entry
        except LeftOut as reason:
            entry.leave_out(str(reason))

    def merge(self, imported: Imported) -> None:
        """Add the problems and notes of another file."""
        for listed in imported.problems:
            self._count(listed)
        for note in imported.notes:
            self.note(note)
        if len(self._problems) > MAX_PROBLEMS:
            raise RecordError(f"{self.path}: the files have more than {MAX_PROBLEMS:,} distinct problems; split them")

    def error(self, line: int, message: str) -> RecordError:
        """The error for a damaged file."""
        return RecordError(f"{self.path}:{line}: {message}")

    def result(self) -> Imported:
        """All problems and notes."""
        problems = (
            ListedProblem(MappingProxyType(dict(fields)), count, where)
            for fields, (count, where) in self._problems.items()
        )
        notes = (
            Note(why, is_assumed, where, count)
            for is_assumed, named in self._notes.items()
            for why, (count, where) in named.items()
        )
        return Imported(tuple(problems), tuple(notes))


class Entry:
    """One entry of a file while it is read."""

    def __init__(self, into: Collector, line: int) -> None:
        self._into, self._line = into, line

    def add(self, fields: Fields, count: int = 1) -> None:
        """Add a problem of the entry; LeftOut if an extent is missing or out of range."""
        self._into.add(fields, self._line, count)

    def leave_out(self, why: str) -> None:
        """Note what the entry has and its problem lacks."""
        self._into.note(Note(why, False, f"{self._into.path}:{self._line}"))

    def assume(self, why: str) -> None:
        """Note what the entry lacks and its problem has."""
        self._into.note(Note(why, True, f"{self._into.path}:{self._line}"))


def whole(value: object) -> int | None:
    """An integer, also as text or as a float without a fraction; None for other values."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 10**_MOST_DIGITS else None
    if isinstance(value, str):
        digits = value.strip().removesuffix(".0")
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None
    return value if isinstance(value, int) and abs(value) < 10**_MOST_DIGITS else None


def extent(name: str, value: object) -> int:
    """A required integer; LeftOut if it is missing or invalid."""
    number = whole(value)
    if number is None:
        raise LeftOut(f"{name} is {shown(value)}; it must be an integer" if value is not None else f"missing {name}")
    return number


def shown(value: object) -> str:
    """A value of a file for messages: one line, shortened."""
    text = value if isinstance(value, str) else type(value).__name__ if isinstance(value, dict | list) else str(value)
    return repr(text[:40]) + ("..." if len(text) > 40 else "")
