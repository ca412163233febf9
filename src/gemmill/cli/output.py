"""Where commands write: results to stdout as text, tables or JSON; progress and complaints to stderr."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, TextIO, cast

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gemmill.library.files import naming

PIPE_WIDTH = 240
"""Columns of a table that does not go to a terminal; a kernel name takes about 90."""


class Status(IntEnum):
    """Exit codes."""

    OK = 0
    WRONG = 1
    """What was checked is wrong, or what was asked for failed."""
    USAGE = 2
    MISSING = 3
    """The machine lacks something: a toolchain, a GPU, a package."""
    INTERRUPTED = 130


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
    """A console on the stream as it is now; wide where nobody looks, so that tables in pipes are not cut."""
    stream = sys.stderr if stderr else sys.stdout
    # Rich sends colours, of its own.
    file = cast("TextIO", _Stream(stream.raw, stream.name)) if isinstance(stream, _Printable) else stream
    return Console(file=file, width=None if _watched(stream) else PIPE_WIDTH, highlight=False, emoji=False)


def _watched(stream: TextIO | None) -> bool:
    """Whether a terminal shows what goes to a stream, which may be closed."""
    return stream is not None and stream.isatty()


JSON_VERSION = 1
"""Grows when a form of JSON loses or renames something."""


def print_json(form: str, value: Mapping[str, object] | Sequence[object]) -> None:
    """One JSON document on stdout, which says its form and version; a list stands under ``items``. Numbers that JSON
    has no word for, such as NaN, are null."""
    content = value if isinstance(value, Mapping) else {"items": value}
    document = {"schema": f"gemmill.{form}/{JSON_VERSION}", **content}
    typer.echo(json.dumps(_finite(document), indent=2, allow_nan=False))


_as_json: ContextVar[bool] = ContextVar("errors_as_json", default=False)
_PLACE = re.compile(r"(\S+:\d+(?::\d+)?): ")


@contextmanager
def errors_as_json() -> Iterator[None]:
    """Have errors told on stdout as well, as the one JSON document of the command."""
    token = _as_json.set(True)
    try:
        yield
    finally:
        _as_json.reset(token)


def tell_as_json(code: str, message: str) -> None:
    """An error as JSON on stdout, where that is what was asked for: its place, if it is one of a file, and, behind its
    last semicolon, what to do."""
    if _as_json.get():
        place, (_, semicolon, hint) = _PLACE.match(message), message.rpartition("; ")
        where = place[1] if place else None
        error = {"code": code, "message": message, "where": where, "hint": hint if semicolon else None}
        with suppress(OSError):  # stdout may be what failed, and stderr has it already
            print_json("error", {"error": error})


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table on stdout; columns whose name starts with ``>`` are aligned to the right."""
    table = Table(
        box=SIMPLE_HEAD, title=title and printable(title), title_justify="left", title_style="bold", pad_edge=False
    )
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(printable(str(cell)) for cell in row))
    console().print(table, markup=False)


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
