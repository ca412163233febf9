"""Collect the distinct problems of a file with their counts, and the reasons for skipped entries."""

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
"""Maximum number of listed reasons for skipped entries; the others are only counted."""
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
class Imported:
    """The problems of a file."""

    format: str
    """Description of the format, such as ``a table of hipblaslt-bench or rocblas-bench``."""
    problems: tuple[ListedProblem, ...]
    """Distinct problems, in the order of their first occurrence."""
    left_out: tuple[str, ...]
    """Notes on skipped entries and on assumptions: place and reason, each reason once, with a count."""


class Collector:
    """Collects the problems of one file and the notes on it; merges equal problems and equal notes."""

    def __init__(self, path: Path, form: str) -> None:
        self.path = path
        self.form = form
        self._problems: dict[tuple[tuple[str, int | str], ...], tuple[int, str]] = {}
        self._reasons: dict[str, tuple[int, str]] = {}
        self._unnamed = 0

    def place(self, line: int) -> str:
        """The location ``file:line``."""
        return f"{self.path}:{line}"

    def add(self, fields: Fields, line: int, count: int = 1) -> None:
        """Add a problem; LeftOut if an extent is missing or out of range."""
        if missing := [key for key in _EXTENTS[:3] if key not in fields]:
            raise LeftOut(f"missing {', '.join(missing)}")
        for key in _EXTENTS:
            if key in fields and not 1 <= int(fields[key]) <= MAX_EXTENT:
                raise LeftOut(f"{key} is {fields[key]}; it must be from 1 to {MAX_EXTENT:,}")
        if not 1 <= count <= _MAX_COUNT:
            raise LeftOut(f"the count is {count:,}; it must be from 1 to {_MAX_COUNT:,}")
        identity = tuple(sorted((key, value) for key, value in fields.items() if (key, value) != ("batch", 1)))
        previous, where = self._problems.get(identity, (0, self.place(line)))
        self._problems[identity] = previous + count, where
        if len(self._problems) > MAX_PROBLEMS:
            raise self.error(line, f"the file has more than {MAX_PROBLEMS:,} distinct problems; split it")

    def note(self, line: int, why: str) -> None:
        """Add a note on a skipped entry or an assumption."""
        if why in self._reasons or len(self._reasons) < MOST_NAMED:
            count, where = self._reasons.get(why, (0, self.place(line)))
            self._reasons[why] = count + 1, where
        else:
            self._unnamed += 1

    @contextmanager
    def at(self, line: int) -> Iterator[None]:
        """Context for reading an entry; LeftOut becomes a note."""
        try:
            yield
        except LeftOut as reason:
            self.note(line, str(reason))

    def error(self, line: int, message: str) -> RecordError:
        """The error for a damaged file."""
        return RecordError(f"{self.path}:{line}: {message}")

    def result(self) -> Imported:
        """All problems and notes."""
        problems = (
            ListedProblem(MappingProxyType(dict(fields)), count, where)
            for fields, (count, where) in self._problems.items()
        )
        notes = [
            f"{where}: {why}" + (f" ({count:,} times)" if count > 1 else "")
            for why, (count, where) in self._reasons.items()
        ]
        more = [f"{self.path}: and {self._unnamed:,} more"] if self._unnamed else []
        return Imported(self.form, tuple(problems), (*notes, *more))


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
