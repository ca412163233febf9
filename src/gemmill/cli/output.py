"""Output of commands: results to stdout as text, tables or JSON; progress, warnings and errors to stderr."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, TextIO, cast

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gemmill.library.errors import GemmillError
from gemmill.library.files import naming


class Status(IntEnum):
    """Exit codes, with their meanings in :data:`MEANS`. They are a stable interface."""

    OK = 0
    WRONG = 1
    USAGE = 2
    MISSING = 3
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANS = {
    Status.OK: "success",
    Status.WRONG: "the command failed, or a check found errors",
    Status.USAGE: "invalid command line or setting",
    Status.MISSING: "something is missing: a toolchain, a GPU or PyTorch; run gemmill doctor",
    Status.HUNG_UP: "terminal closed (SIGHUP)",
    Status.INTERRUPTED: "interrupted (Ctrl-C)",
    Status.TERMINATED: "terminated (SIGTERM)",
}
"""The meaning of each exit code, as printed in the help and in docs/output.md."""


class UsageError(typer.BadParameter):
    """An error in the command line that is not about the value of one option."""

    def format_message(self) -> str:
        """The message alone; typer would put "Invalid value:" before it."""
        return self.message


@contextmanager
def usage(*errors: type[GemmillError]) -> Iterator[None]:
    """Report errors of these classes as errors in the command line, because it has the values that they name."""
    try:
        yield
    except errors as error:
        raise UsageError(str(error)) from None


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, set titles and colours or change text direction, except newlines and tabs."""


def printable(text: str) -> str:
    """A text with control characters escaped as in Python; names may come from untrusted files."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class _Stream:
    """A stream whose errors contain its name."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.raw, self.name = stream, name

    def write(self, text: str) -> int:
        """Write a text and return its length in characters."""
        with naming(self.name):
            self.raw.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with naming(self.name):
            self.raw.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class _Printable(_Stream):
    """A stream that writes control characters in escaped form."""

    def write(self, text: str) -> int:
        """Write a text and return its length in characters."""
        super().write(printable(text))
        return len(text)


@contextmanager
def only_printable() -> Iterator[None]:
    """Escape control characters in all output to stdout and stderr."""
    with (
        redirect_stdout(cast("TextIO", _Printable(sys.stdout, "stdout")) if sys.stdout else None),
        redirect_stderr(cast("TextIO", _Printable(sys.stderr, "stderr")) if sys.stderr else None),
    ):
        yield


def console(*, stderr: bool = False) -> Console:
    """A Rich console on the current stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    # Without the wrapper, because Rich writes its own control characters for colours.
    file = cast("TextIO", _Stream(stream.raw, stream.name)) if isinstance(stream, _Printable) else stream
    return Console(file=file, highlight=False, emoji=False)


def _watched(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; False for None, a closed stream."""
    return stream is not None and stream.isatty()


JSON_VERSION = 1
"""Incremented when a JSON schema loses or renames a key."""


class _Answer:
    """Whether the one JSON document that --json guarantees has been printed."""

    def __init__(self) -> None:
        self.given = False


_answer: ContextVar[_Answer | None] = ContextVar("answer_as_json", default=None)
_PLACE = re.compile(r"(\S+:\d+(?::\d+)?): ")
_HINT = re.compile(r"(?:; |, (?=did you mean )|: (?=(?:run|raise|pass|name|split|keep|free|`pip|pip) ))(?!.*; )(.*)$")
"""The advice at the end of a message."""


def as_json(form: str, value: Mapping[str, object] | Sequence[object]) -> str:
    """A JSON document with its schema and version. A list is stored under ``items``. NaN and infinities, which JSON
    lacks, become null."""
    content = value if isinstance(value, Mapping) else {"items": value}
    document = {"schema": f"gemmill.{form}/{JSON_VERSION}", **content}
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def is_json() -> bool:
    """Whether --json is given, so that the command prints one JSON document."""
    return _answer.get() is not None


def print_result(form: str, value: Mapping[str, object] | Sequence[object], text: str | Callable[[], object]) -> None:
    """Print a result: JSON with --json, otherwise a text or the output of a function."""
    if is_json():
        print_json(form, value)
    elif isinstance(text, str):
        typer.echo(text)
    else:
        text()


def print_faults(form: str, report: Mapping[str, object], faults: Sequence[str], text: str) -> None:
    """Print the result of a check and its faults; exit with 1 if there are any."""
    if not is_json():
        for fault in faults:
            complain(fault)
    print_result(form, report, text)
    if faults:
        raise typer.Exit(Status.WRONG)


def print_json(form: str, value: Mapping[str, object] | Sequence[object]) -> None:
    """Print the JSON document of :func:`as_json` on stdout."""
    text = as_json(form, value)
    if answer := _answer.get():
        answer.given = True
    typer.echo(text)


@contextmanager
def answer_as_json() -> Iterator[None]:
    """Print an error as JSON on stdout too, unless the command has already printed its document."""
    token = _answer.set(_Answer())
    try:
        yield
    finally:
        _answer.reset(token)


def print_error(code: str, message: str) -> None:
    """Print an error as JSON on stdout, with --json and if no document has been printed.

    ``where`` is its place in a file, and ``hint`` the advice at the end of the message; null where there is none.
    """
    answer = _answer.get()
    if answer and not answer.given:
        place, hint = _PLACE.match(message), _HINT.search(message)
        error = {"code": code, "message": message, "where": place and place[1], "hint": hint and hint[1]}
        with suppress(OSError):  # stdout itself may have failed, and stderr already has the message
            print_json("error", {"error": error})


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_GAP = "  "
"""Separates two columns of a table."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table on stdout, one line per row. Columns whose name starts with ``>`` are right-aligned.

    In a terminal that is too narrow, cells wrap at spaces. A word, such as a kernel's name, is never split: where the
    row still does not fit, the column with the longest word gets its own line above the rest of the row.
    """
    names = [column.removeprefix(">") for column in columns]
    cells = [names, *([" ".join(printable(str(cell)).split()) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    right = [column.startswith(">") for column in columns]
    to, apart, indent = console(), list[str](), ""
    if _watched(sys.stdout):
        least = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in zip(*cells)]  # noqa: B905
        room = to.width - len(_GAP) * (len(columns) - 1)
        if len(columns) > 1 and sum(least) > room:
            longest, indent = least.index(max(least)), _GAP
            apart = [row.pop(longest) for row in cells]
            for each in (widths, least, right):
                del each[longest]
        widths = _narrowed(widths, least, room)
    if title:
        to.print(printable(title), style="bold", markup=False, soft_wrap=True)
    for number, row in enumerate(cells):
        for line in (*apart[number : number + 1], *(indent + line for line in _lines(row, widths, right))):
            to.print(line, style="bold" if number == 0 else "", markup=False, soft_wrap=True)


def _narrowed(widths: list[int], least: Sequence[int], room: int) -> list[int]:
    """Column widths that fit into ``room`` characters: repeatedly narrow the widest column that can still wrap."""
    widths = widths.copy()
    while sum(widths) > room and (wide := [i for i, width in enumerate(widths) if width > least[i]]):
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """The lines of a row after wrapping."""
    folded = [
        textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) if cell_len(cell) > width else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    for parts in itertools.zip_longest(*folded, fillvalue=""):
        placed = []
        for part, width, to_the_right in zip(parts, widths, right, strict=True):
            space = " " * (width - cell_len(part))
            placed.append(space + part if to_the_right else part + space)
        yield _GAP.join(placed).rstrip()


def number(value: float | None, digits: int) -> str:
    """A number as the text of a cell; empty for None."""
    return "" if value is None else f"{value:.{digits}f}"


def complain(message: str) -> None:
    """Print a message on stderr."""
    typer.echo(message, err=True)


@contextmanager
def progress(**totals: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar per kind of step if stderr is a terminal; yields a function to call after each step."""
    if not _watched(sys.stderr):
        yield lambda kind: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
    )
    with bar:
        tasks = {kind: bar.add_task(kind, total=total) for kind, total in totals.items()}
        yield lambda kind: bar.advance(tasks[kind])
