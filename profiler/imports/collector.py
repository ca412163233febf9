"""What a reader collects: the problems of a file, each once with a count, and what had to be left out, and why."""

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
"""Most different problems of a file."""
MOST_NAMED = 20
"""Reasons to leave something out that are named; what else there is, is counted."""
_EXTENTS = ("m", "n", "k", "batch", "groups")
_MAX_COUNT = 1 << 62
_MOST_DIGITS = 18
MAX_JSON = 16 << 20
"""Most bytes of a JSON text that is read at once: a hundred thousand problems take less."""
LONGEST_LINE = 20_000
"""Characters of a line that is read."""

Fields = Mapping[str, int | str]
"""Keywords of a problem as people write them."""


@dataclass(frozen=True)
class TextFile:
    """A text, and what its formats may lack."""

    path: Path
    """Its place, for messages, and for the one format that has extents in its name."""
    text: str
    m: Sequence[int] = ()
    """Extents M for formats that have none."""
    k: Sequence[int] = ()
    """Extents K for formats that have none."""

    @cached_property
    def lines(self) -> list[str]:
        """Its lines; empty where one is too long to be read, as patterns could take forever."""
        return [line if len(line) <= LONGEST_LINE else "" for line in self.text.split("\n")]


class LeftOut(Exception):
    """Something that a file has cannot be served, or is incomplete; the message says what and why."""


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """A problem as a file has it."""

    fields: Fields
    """What the file says of it: ``m``, ``n``, ``k``, ``batch``, dtypes ``a`` to ``d``, majors, ``accumulator``, scales,
    ``batching``, ``groups``, ``epilogue``. What is not there, the file leaves open."""
    count: int = 1
    """How often it ran, or is listed."""
    where: str = ""
    """``file:line`` where it stands first."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What was understood of a file."""

    format: str
    """The format in words, as in ``a table of hipBLASLt's or rocBLAS's benchmark``."""
    problems: tuple[ListedProblem, ...]
    """Different problems, in the order in which they occur first."""
    left_out: tuple[str, ...]
    """What is not among the problems, or was assumed of them: place and reason, each reason once, with a count."""


class Collector:
    """Problems of one file. Equal ones are merged, and so are equal reasons to leave something out."""

    def __init__(self, path: Path, form: str) -> None:
        self.path = path
        self.form = form
        self._problems: dict[tuple[tuple[str, int | str], ...], tuple[int, str]] = {}
        self._reasons: dict[str, tuple[int, str]] = {}
        self._unnamed = 0

    def place(self, line: int) -> str:
        """``file:line``."""
        return f"{self.path}:{line}"

    def add(self, fields: Fields, line: int, count: int = 1) -> None:
        """Take a problem; LeftOut where an extent is missing or none that a kernel takes."""
        if missing := [key for key in _EXTENTS[:3] if key not in fields]:
            raise LeftOut(f"{', '.join(missing)} missing")
        for key in _EXTENTS:
            if key in fields and not 1 <= int(fields[key]) <= MAX_EXTENT:
                raise LeftOut(f"{key} is {fields[key]}; allowed: from 1 to {MAX_EXTENT:,}")
        if not 1 <= count <= _MAX_COUNT:
            raise LeftOut(f"a count of {count:,}")
        identity = tuple(sorted((key, value) for key, value in fields.items() if (key, value) != ("batch", 1)))
        before, where = self._problems.get(identity, (0, self.place(line)))
        self._problems[identity] = before + count, where
        if len(self._problems) > MAX_PROBLEMS:
            raise self.error(line, f"there are more than {MAX_PROBLEMS:,} different problems; split the file")

    def note(self, line: int, why: str) -> None:
        """Say that something is left out or assumed, and why."""
        if why in self._reasons or len(self._reasons) < MOST_NAMED:
            before, where = self._reasons.get(why, (0, self.place(line)))
            self._reasons[why] = before + 1, where
        else:
            self._unnamed += 1

    @contextmanager
    def at(self, line: int) -> Iterator[None]:
        """Read what stands in a line; it is left out where that says so."""
        try:
            yield
        except LeftOut as reason:
            self.note(line, str(reason))

    def error(self, line: int, message: str) -> RecordError:
        """The error of a damaged file."""
        return RecordError(f"{self.path}:{line}: {message}")

    def result(self) -> Imported:
        """All that was collected."""
        problems = (
            ListedProblem(MappingProxyType(dict(fields)), count, where)
            for fields, (count, where) in self._problems.items()
        )
        named = [
            f"{where}: {why}" + (f" ({count:,} times)" if count > 1 else "")
            for why, (count, where) in self._reasons.items()
        ]
        more = [f"{self.path}: and {self._unnamed:,} more"] if self._unnamed else []
        return Imported(self.form, tuple(problems), (*named, *more))


def whole(value: object) -> int | None:
    """A whole number that a file has, as such, as text or as a float without a fraction; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 10**_MOST_DIGITS else None
    if isinstance(value, str):
        digits = value.strip().removesuffix(".0")
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None
    return value if isinstance(value, int) and abs(value) < 10**_MOST_DIGITS else None


def extent(name: str, value: object) -> int:
    """A number that must be there; LeftOut where it is none."""
    number = whole(value)
    if number is None:
        raise LeftOut(f"{name} is {shown(value)}, no whole number" if value is not None else f"{name} missing")
    return number


def shown(value: object) -> str:
    """A value of a file as messages show it: one line, not too long."""
    text = value if isinstance(value, str) else type(value).__name__ if isinstance(value, dict | list) else str(value)
    return repr(text[:40]) + ("..." if len(text) > 40 else "")
