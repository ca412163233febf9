"""Where commands write: results to stdout as text, tables or JSON; progress and complaints to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

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


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; wide where nobody looks, so that tables in pipes are not cut."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if _watched(stream) else PIPE_WIDTH, highlight=False, emoji=False)


def _watched(stream: TextIO | None) -> bool:
    """Whether a terminal shows what goes to a stream, which may be closed."""
    return stream is not None and stream.isatty()


def print_json(value: object) -> None:
    """One JSON value on stdout."""
    typer.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table on stdout; columns whose name starts with ``>`` are aligned to the right."""
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
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
