"""What was measured and ships: the fastest kernels at the shapes of the suites, on GPUs that somebody swept.

The selector prefers it to its model, as it does a caller's own records to both. ``benchmarks/fit.py`` writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.decisions import Decision
from gemmill.runtime.trees import path_of

VERSION = 1
"""Of the files."""
EXTENTS = ("m", "n", "k")
FORMATS = tuple(field.name for field in fields(GemmProblem) if field.name not in EXTENTS)
"""What the problems of a table have in common, in the order of its key."""

formats_of = attrgetter(*FORMATS)
"""The key of a problem's table."""


class Measured(NamedTuple):
    """The tables of a GPU."""

    kernels: Sequence[str]
    tables: Mapping[tuple[Any, ...], Mapping[str, Sequence[float]]]
    """By formats, then by extents: a kernel's index and its microseconds in turn, the fastest first."""

    def decisions(self, problem: GemmProblem, gpu: str) -> list[Decision]:
        """The kernels measured on a problem, the fastest first; none for most problems."""
        row = self.tables.get(formats_of(problem), {}).get(extents_of(problem), ())
        return [
            Decision(problem=problem, gpu=gpu, kernel=self.kernels[int(kernel)], us=us)
            for kernel, us in zip(row[::2], row[1::2], strict=True)
        ]


@cache
def measured(gpu: str) -> Measured | None:
    """The tables of a GPU, by the name of its row in library/arch.py; None where nobody has swept it.

    Raises:
        RecordError: the file is of another version.
    """
    path = path_of(gpu, "measured")
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    if content["version"] != VERSION:
        raise RecordError(f"{path}: version {content['version']}, not {VERSION}: write it again (benchmarks/fit.py)")
    return Measured(
        content["kernels"], {tuple(table["formats"].values()): table["problems"] for table in content["tables"]}
    )


def extents_of(problem: GemmProblem) -> str:
    """``MxNxK``: the key of a problem in its table."""
    return f"{problem.m}x{problem.n}x{problem.k}"
