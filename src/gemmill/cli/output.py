"""Where commands write: results to stdout as text, tables or JSON; progress and complaints to stderr."""

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

from gemmill.library.files import naming


class Status(IntEnum):
    """Exit codes; :data:`MEANS` says of what. They stay as they are."""

    OK = 0
    WRONG = 1
    USAGE = 2
    MISSING = 3
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANS = {
    Status.OK: "done",
    Status.WRONG: "what was checked is wrong, or what was asked for failed",
    Status.USAGE: "the command line, or a setting, is wrong",
    Status.MISSING: "this machine lacks something: a toolchain, a GPU, PyTorch (see: gemmill doctor)",
    Status.HUNG_UP: "the terminal was closed (SIGHUP)",
    Status.INTERRUPTED: "interrupted (Ctrl-C)",
    Status.TERMINATED: "terminated (SIGTERM)",
}
"""What exit codes mean: the help and docs/output.md say it in these words."""


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves the cursor, sets titles and colours or turns text around, but for line ends and tabs."""


def printable(text: str) -> str:
    """A text with control characters as Python writes them: names may come from files of others."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class _Stream:
    """A stream whose errors say which it is."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.raw, self.name = stream, name

    def write(self, text: str) -> int:
        """Write a text; how long it was."""
        with naming(self.name):
            self.raw.write(text)
        return len(text)

    def flush(self) -> None:
        """Send what was written."""
        with naming(self.name):
            self.raw.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class _Printable(_Stream):
    """A stream that shows control characters instead of sending them."""

    def write(self, text: str) -> int:
        """Write a text; how long it was."""
        super().write(printable(text))
        return len(text)


@contextmanager
def only_printable() -> Iterator[None]:
    """Have whatever is written to stdout and stderr, by whom it may be, show control characters."""
    with (
        redirect_stdout(cast("TextIO", _Printable(sys.stdout, "stdout")) if sys.stdout else None),
        redirect_stderr(cast("TextIO", _Printable(sys.stderr, "stderr")) if sys.stderr else None),
    ):
        yield


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now."""
    stream = sys.stderr if stderr else sys.stdout
    # Rich sends colours, of its own.
    file = cast("TextIO", _Stream(stream.raw, stream.name)) if isinstance(stream, _Printable) else stream
    return Console(file=file, highlight=False, emoji=False)


def _watched(stream: TextIO | None) -> bool:
    """Whether a terminal shows what goes to a stream, which may be closed."""
    return stream is not None and stream.isatty()


JSON_VERSION = 1
"""Grows when a form of JSON loses or renames something."""


class _Answer:
    """What --json promises: one document on stdout, whatever happens."""

    def __init__(self) -> None:
        self.given = False


_answer: ContextVar[_Answer | None] = ContextVar("answer_as_json", default=None)
_PLACE = re.compile(r"(\S+:\d+(?::\d+)?): ")
_HINT = re.compile(r"(?:; |, (?=did you mean )|: (?=(?:run|raise|pass|name|split|keep|free|`pip|pip) ))(?!.*; )(.*)$")
"""What to do, at the end of a message."""


def as_json(form: str, value: Mapping[str, object] | Sequence[object]) -> str:
    """A JSON document, which says its form and version; a list stands under ``items``. Numbers that JSON has no word
    for, such as NaN, are null."""
    content = value if isinstance(value, Mapping) else {"items": value}
    document = {"schema": f"gemmill.{form}/{JSON_VERSION}", **content}
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def is_json() -> bool:
    """Whether --json was given: what a command prints is one document then."""
    return _answer.get() is not None


def print_result(form: str, value: Mapping[str, object] | Sequence[object], text: str | Callable[[], object]) -> None:
    """A result: JSON where it was asked for, else a text, or what prints it."""
    if is_json():
        print_json(form, value)
    elif isinstance(text, str):
        typer.echo(text)
    else:
        text()


def print_faults(form: str, report: Mapping[str, object], faults: Sequence[str], text: str) -> None:
    """What was checked, and what is wrong with it; ends the command with 1 where something is."""
    if not is_json():
        for fault in faults:
            complain(fault)
    print_result(form, report, text)
    if faults:
        raise typer.Exit(Status.WRONG)


def print_json(form: str, value: Mapping[str, object] | Sequence[object]) -> None:
    """The one JSON document on stdout, as :func:`as_json` makes it."""
    text = as_json(form, value)
    if answer := _answer.get():
        answer.given = True
    typer.echo(text)


@contextmanager
def answer_as_json() -> Iterator[None]:
    """Have errors told on stdout as well, unless the command has given its document by then."""
    token = _answer.set(_Answer())
    try:
        yield
    finally:
        _answer.reset(token)


def print_error(code: str, message: str) -> None:
    """An error as JSON on stdout, where JSON was asked for and nothing has been printed: its place, if it is one of a
    file, and what to do, as far as the message ends with it."""
    answer = _answer.get()
    if answer and not answer.given:
        place, hint = _PLACE.match(message), _HINT.search(message)
        error = {"code": code, "message": message, "where": place and place[1], "hint": hint and hint[1]}
        with suppress(OSError):  # stdout may be what failed, and stderr has it already
            print_json("error", {"error": error})


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_GAP = "  "
"""Between two columns of a table."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table on stdout, a line for each row; columns whose name starts with ``>`` are aligned to the right.

    In a terminal that is too narrow, cells are folded at their spaces; what has none, such as a kernel's name, stays
    whole however narrow it is.
    """
    names = [column.removeprefix(">") for column in columns]
    cells = [names, *([" ".join(printable(str(cell)).split()) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    to = console()
    if _watched(sys.stdout):
        least = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in zip(*cells)]  # noqa: B905
        widths = _narrowed(widths, least, to.width - len(_GAP) * (len(widths) - 1))
    right = [column.startswith(">") for column in columns]
    if title:
        to.print(printable(title), style="bold", markup=False, soft_wrap=True)
    for number, row in enumerate(cells):
        for line in _lines(row, widths, right):
            to.print(line, style="bold" if number == 0 else "", markup=False, soft_wrap=True)


def _narrowed(widths: list[int], least: Sequence[int], room: int) -> list[int]:
    """Widths of columns of which the widest that can be folded, one after the other, give way until all have room."""
    widths = widths.copy()
    while sum(widths) > room and (wide := [i for i, width in enumerate(widths) if width > least[i]]):
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """The lines that a row takes."""
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
    """A number as a cell; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def complain(message: str) -> None:
    """A message on stderr."""
    typer.echo(message, err=True)


@contextmanager
def progress(**totals: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr for each kind of step, while a terminal watches; yields what to call after a step."""
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
