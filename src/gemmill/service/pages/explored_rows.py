"""The rows of the explorer: each problem with its kernel, its rates and its share of the roofline."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from gemmill.library.arch import Gpu
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.profiler.analysis.figures import formats, moved_bytes
from gemmill.profiler.analysis.roofline import PeakRate, peak_rate, roof
from gemmill.profiler.measure.peak_rates import Roof
from gemmill.runtime.select.choice import Choice
from gemmill.service.pages.problem_lists import Entry


@dataclass(frozen=True)
class Row:
    """A problem of a pass and its kernel."""

    number: int
    """From 1, in the order of the pass."""
    entry: Entry
    gpu: Gpu
    choice: Choice | None
    """None if no kernel supports the problem."""
    error: str = ""
    """Why there is no kernel."""

    @property
    def formats(self) -> str:
        """Types, layouts and other keywords of the problem."""
        problem = self.entry.problem
        is_batch = problem.batching == "strided" and problem.batch > 1
        return formats(problem) + (f", batch {problem.batch}" if is_batch else "")

    @property
    def kernel_in_words(self) -> str:
        """Tile, cluster, schedule and decomposition of the kernel."""
        if self.choice is None:
            return ""
        config, slices = self.choice.config, self.choice.slices
        split = "" if decomposition_of(config).is_data_parallel else config.scheduler.decomposition
        parts = (
            f"{config.tile.m}x{config.tile.n}x{config.tile.k}",
            f"{config.cluster.m}x{config.cluster.n}",
            config.schedule,
            split + (f"/{slices}" if slices > 1 else ""),
        )
        return " ".join(filter(None, parts))

    @property
    def us(self) -> float:
        """Expected microseconds of one launch; NaN if unknown."""
        return math.nan if self.choice is None else self.choice.predicted_us

    @property
    def total_us(self) -> float:
        """Expected microseconds of all launches in the pass."""
        return self.us * self.entry.count

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of a launch."""
        return self.entry.problem.expected_flops

    @cached_property
    def bytes(self) -> float:
        """Bytes of a launch, with each operand moved once."""
        return moved_bytes(self.entry.problem.typical())

    @property
    def tflops(self) -> float:
        """TFLOP/s."""
        return self.flops / self.us / 1e6 if self.us else math.nan

    @property
    def gbps(self) -> float:
        """GB/s."""
        return self.bytes / self.us / 1e3 if self.us else math.nan

    @cached_property
    def peak(self) -> PeakRate:
        """The peak rate for the types of the problem."""
        return peak_rate(self.entry.problem, self.gpu)

    @cached_property
    def roof(self) -> Roof:
        """What limits the problem on the roofline, and the microseconds of a launch at this rate."""
        return roof(self.entry.problem, self.gpu)

    @property
    def reached(self) -> float:
        """Share of the limiting rate that the kernel reaches."""
        return self.roof.us / self.us if self.us else math.nan


@dataclass(frozen=True)
class Totals:
    """The sums of a pass, over the problems that have a kernel."""

    rows: Sequence[Row]

    @cached_property
    def known(self) -> list[Row]:
        """The rows with a time."""
        return [row for row in self.rows if row.us > 0]

    def _sum(self, value: Callable[[Row], float]) -> float:
        return math.fsum(value(row) * row.entry.count for row in self.known)

    @property
    def count(self) -> int:
        """Launches."""
        return sum(row.entry.count for row in self.rows if row.choice is not None)

    @cached_property
    def us(self) -> float:
        """Microseconds of all launches."""
        return self._sum(lambda row: row.us)

    @property
    def tflops(self) -> float:
        """TFLOP/s of the pass."""
        return self._sum(lambda row: row.flops) / self.us / 1e6 if self.us else math.nan

    @property
    def gbps(self) -> float:
        """GB/s of the pass."""
        return self._sum(lambda row: row.bytes) / self.us / 1e3 if self.us else math.nan

    @property
    def reached(self) -> float:
        """Share of the roofline that the pass reaches."""
        return self._sum(lambda row: row.roof.us) / self.us if self.us else math.nan

    def share(self, row: Row) -> float:
        """Share of a row in the time of the pass."""
        return row.total_us / self.us if row.us > 0 else math.nan

    @property
    def without(self) -> int:
        """Problems without a kernel."""
        return sum(row.choice is None for row in self.rows)

    @property
    def kernels(self) -> int:
        """Different kernels."""
        return len({row.choice.name for row in self.rows if row.choice is not None})


class Column(NamedTuple):
    """A column that rows are sorted by."""

    label: str
    key: Callable[[Row], Any]
    is_number: bool = True


COLUMNS: Mapping[str, Column] = {
    "layer": Column("Layer", lambda row: row.entry.layer or str(row.entry.problem), is_number=False),
    "count": Column("Count", lambda row: row.entry.count),
    "m": Column("M", lambda row: row.entry.problem.m),
    "n": Column("N", lambda row: row.entry.problem.n),
    "k": Column("K", lambda row: row.entry.problem.k),
    "formats": Column("Formats", lambda row: row.formats, is_number=False),
    "kernel": Column("Kernel", lambda row: row.kernel_in_words, is_number=False),
    "us": Column("µs", lambda row: row.us),
    "tflops": Column("TFLOP/s", lambda row: row.tflops),
    "gbps": Column("GB/s", lambda row: row.gbps),
    "roofline": Column("Of roofline", lambda row: row.reached),
    "share": Column("Of the time", lambda row: row.total_us),
}
"""The columns of the table, by the word in the link that sorts by it; with ``-`` in front, the largest first."""


def in_order(rows: Sequence[Row], order: str) -> list[Row]:
    """The rows sorted by a column; in the order of the pass for an unknown one. Unknown values come last."""
    if (column := COLUMNS.get(order.removeprefix("-"))) is None:
        return [*rows]
    keys = {row.number: column.key(row) for row in rows}
    known = [row for row in rows if keys[row.number] == keys[row.number]]  # NaN differs from itself
    unknown = [row for row in rows if keys[row.number] != keys[row.number]]
    return sorted(known, key=lambda row: keys[row.number], reverse=order[0] == "-") + unknown


def as_csv(passes: Iterable[tuple[str, Sequence[Row]]]) -> str:
    """A table of all passes, with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            *("pass", "layer", "count", "problem", "m", "n", "k", "batch", "kernel", "slices", "arithmetic", "swap_ab"),
            *("us", "source", "tflops", "gbps", "intensity", "bound", "of_roofline", "of_time", "why", "error"),
        ]
    )
    for name, rows in passes:
        totals = Totals(rows)
        for row in rows:
            problem, choice = row.entry.problem, row.choice
            names = map(_without_formula, (name, row.entry.layer))
            given = (*names, row.entry.count, problem, problem.m, problem.n, problem.k, problem.batch)
            if choice is None:
                writer.writerow((*given, *[""] * 13, row.error))
                continue
            selected = (choice.name, choice.slices, choice.arithmetic, choice.swap_ab, row.us, choice.source)
            rates = (row.tflops, row.gbps, row.flops / row.bytes if row.bytes else "", row.roof.name, row.reached)
            writer.writerow((*given, *selected, *rates, totals.share(row), choice.why, ""))
    return out.getvalue()


def _without_formula(name: str) -> str:
    """A name, which anyone can put into a link, so that spreadsheets do not run it as a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name
