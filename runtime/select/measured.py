"""What was measured and ships: the fastest kernels at the shapes of the suites, on GPUs that somebody swept.

The selector prefers it to its model, as it does a caller's own records to both. `gemmill train` writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.models import content_of, path_of, sound

VERSION = 1
"""Of the files."""
FORMATS = tuple(field.name for field in fields(GemmProblem) if field.name not in ("m", "n", "k", "expected_rows"))
"""What the problems of a table have in common, in the order of its key. It does not tell how many rows of a slot are
expected."""

formats_of = attrgetter(*FORMATS)
"""The key of a problem's table."""


class Measured(NamedTuple):
    """The tables of a GPU."""

    kernels: Sequence[str]
    tables: Mapping[tuple[Any, ...], Mapping[str, Sequence[float]]]
    """By formats, then by a problem's extents: a kernel's index and its microseconds in turn, the fastest first."""
    types: frozenset[tuple[str, str, str]]
    """Types of A, B and D that there are tables of."""

    def times(self, problem: GemmProblem) -> list[tuple[float, str]]:
        """Microseconds of the kernels measured on a problem, and their names, the fastest first; none for most."""
        table = self.tables.get(formats_of(problem))
        if table is None or (row := table.get(problem.extents)) is None:
            return []
        return [(us, self.kernels[int(kernel)]) for kernel, us in zip(row[::2], row[1::2], strict=True)]


@cache
def measured(gpu: str, folder: Path | None = None) -> Measured | None:
    """The tables of a GPU, by the name of its row in library/arch.py, in a folder of models, by default of those that
    ship; None where nobody has swept it.

    Raises:
        RecordError: the file is damaged or of another version.
    """
    if (content := content_of(gpu, folder, "measured", VERSION)) is None:
        return None
    with sound(path_of(gpu, "measured", folder)):
        tables = content["tables"]
        return Measured(
            content["kernels"],
            {tuple(table["formats"].values()): table["problems"] for table in tables},
            frozenset(tuple(table["formats"][f"{x}_dtype"] for x in "abd") for table in tables),
        )
