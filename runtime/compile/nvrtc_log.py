"""Reads the errors in NVRTC's log, and cites each at its line of the source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_ERROR = re.compile(
    r"(?:(?P<file>.+)\((?P<line>\d+)\)|At end of source): (?:(?P<kind>\w+ )?error)(?: #\S+)?: (?P<says>.*)"
)
_NOTE = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): note(?: #\S+)?: (?P<says>.*)")
_PTXAS = re.compile(r"ptxas .*\b(?:error|fatal)\b.*", re.MULTILINE)
"""An error of ptxas, as in inline PTX; its lines are those of the PTX."""
_TRACE = "detected during"
"""Begins the list of instantiations that lead to an error, from the innermost to the outermost."""


@dataclass(slots=True)
class _Error:
    """An error in the log: where, what, the lines of code and notes that NVRTC shows, and the instantiations."""

    file: str | None
    """None, like the line: the end of the source."""
    line: str | None
    says: str
    code: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Add a line below the error."""
        (self.trace if self.trace or line.strip().startswith(_TRACE) else self.code).append(line)


def cited_errors(log: str, source: str, folders: Iterable[Path | str]) -> list[str]:
    """The errors of a log in order, each as ``FILE:LINE: text`` with code and notes below it.

    FILE:LINE is a place in the source. For an error in a header it is the line that instantiates the header's template,
    and the header's own place follows the text. An error at the end of the source or of ptxas has no LINE.

    Args:
        log: NVRTC's log.
        source: the name of the source in the log.
        folders: where headers are; their names are given relative to these.
    """
    roots = [f"{os.fspath(folder)}/" for folder in folders]
    of_ptxas = (f"{source}: {line}" for line in _PTXAS.findall(log))
    return [*(_cited(error, source, roots) for error in _errors(log)), *of_ptxas]


def _errors(log: str) -> Iterator[_Error]:
    error: _Error | None = None
    for line in log.splitlines():
        if match := _ERROR.fullmatch(line):
            if error:
                yield error
            kind = match["kind"]
            error = _Error(match["file"], match["line"], f"{kind}error: {match['says']}" if kind else match["says"])
        elif error and line.strip():
            error.add(line)
        elif error:
            yield error
            error = None
    if error:
        yield error


def _cited(error: _Error, source: str, roots: Iterable[str]) -> str:
    place, says = _place(error.file or source, error.line, roots), error.says
    lines = re.findall(rf'at line (\d+) of "?{re.escape(source)}', "\n".join(error.trace))
    if error.file not in (None, source) and lines:
        place, says = f"{source}:{lines[-1]}", f"{says} ({place})"
    return "\n".join([f"{place}: {says}", *(_below(line, roots) for line in error.code)])


def _below(line: str, roots: Iterable[str]) -> str:
    """A line below an error; a note has its place in the form of the error's."""
    note = _NOTE.fullmatch(line)
    return f"{_place(note['file'], note['line'], roots)}: note: {note['says']}" if note else line


def _place(file: str, line: str | None, roots: Iterable[str]) -> str:
    file = next((file.removeprefix(root) for root in roots if file.startswith(root)), file)
    return f"{file}:{line}" if line else f"{file}: at the end"
