"""The published tables: ``docs/performance/results.md``, made from the measurements that the repository keeps.

``python -m gemmill.profiler.analysis.published`` writes the page. A table is a row of :data:`TABLES`: sweeps of one
kind, of which the newest of each type is taken. Every kernel and baseline of a problem was timed in the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import quantiles
from textwrap import wrap
from typing import NamedTuple

from gemmill.library.parquet import read_sweeps, sweeps_of
from gemmill.library.records import Measurement
from gemmill.profiler.analysis.figures import Figures, figures, geometric_mean

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "profiler" / "results"
PAGE = ROOT / "docs" / "performance" / "results.md"
TYPES: Mapping[str, str] = {"bf16": "bf16", "f16": "f16", "e4m3": "fp8", "s8": "int8", "tf32": "tf32"}
"""Types of A and B, and what the names of their sweeps begin with."""
FEWEST_ROUNDS = 9
"""Below which a row is marked."""


class Table(NamedTuple):
    """One table."""

    title: str
    file: str
    """Of measurements."""
    sweeps: tuple[str, ...]
    """Patterns of names of sweeps, after the type."""
    baseline: str
    chooser: str
    """Who named the kernel: :attr:`~gemmill.library.records.Measurement.chosen`."""
    about: str


LAYERS = (
    "Suites `h200` and `llm`: 20 shapes of all kinds and the projections of eleven public models at one to 16,384 rows."
    " Of each the four kernels that the selector ranks first were measured, and what it chooses."
)
DRAWN = "Suite `drawn`: layers and rows at random, which no model and no table was fitted to."
KMAJOR = ("drawn-20261128T191[789]*", "drawn-20261128T192006Z")
ROW_MAJOR = ("drawn-20261128T192134Z",)
H200 = "h200-others"
TABLES = (
    Table("Layers of language models, H200", H200, ("h200+llm-*",), "cublaslt", "selected", LAYERS),
    Table("Layers of language models, H100", "h100-others", ("h200+llm-*",), "cublaslt", "selected", LAYERS),
    Table("The same beside cuBLAS through PyTorch, H200", H200, ("h200+llm-*",), "cublas", "selected", LAYERS),
    Table("Problems drawn at random, H200", H200, KMAJOR, "cublaslt", "selected", DRAWN),
    Table("The same with a row-major B", H200, ROW_MAJOR, "cublaslt", "selected", DRAWN),
    Table(
        "Gradients of inputs",
        H200,
        ("input-gradients-*",),
        "cublaslt",
        "selected",
        "Suite `input-gradients`: B row-major.",
    ),
    Table(
        "Gradients of weights",
        H200,
        ("weight-gradients-*",),
        "cublaslt",
        "selected",
        "Suite `weight-gradients`: A and B contiguous along M and N.",
    ),
    Table(
        "Few rows times row-major weights",
        H200,
        ("row-major-few-*",),
        "cublaslt",
        "selected",
        "Layers of suite `llm` at 1, 16, 64 and 256 rows.",
    ),
    Table(
        "Batches",
        H200,
        ("batched-*",),
        "cublaslt",
        "selected",
        "Suite `batched`: heads of attention, experts.",
    ),
    Table(
        "Layers in no suite",
        H200,
        ("unseen-layers-*",),
        "cublaslt",
        "selected",
        "24 problems of layers that no run had measured before.",
    ),
    Table(
        "Rows that TMA cannot move",
        H200,
        ("unaligned-*",),
        "cublaslt",
        "selected",
        "Suite `unaligned`, such as K = 4097; where cuBLASLt has no kernel, a problem is left out.",
    ),
)
_HEAD = """# Results

Made from `profiler/results/*.parquet` by `python -m gemmill.profiler.analysis.published`; a test holds the page equal
to them. Bursts of a millisecond, not seconds at the power limit; [method.md](method.md) says how they are made,
[reproduce.md](reproduce.md) by which commands. On one NVIDIA H200 or H100 a sweep, named with its day and time.

A figure is the geometric mean over problems of the baseline's time over the selected kernel's, above 1 is faster; in
parentheses the same of opposite quartiles over rounds, of one's slow and of the other's fast ones. Where 1 lies between
these the row is marked ≈: it claims no difference. Then the same of the fastest kernel of all that were measured, the
least, the 5th and the 95th percentile over problems, how many of them gemmill wins, how near the selected kernel is to
the fastest, and the fewest rounds that a time of the row is the median of; marked *, where these are less than nine.
"""


class Line(NamedTuple):
    """What one sweep comes to."""

    type: str
    sweep: str
    commit: str
    driver: str
    problems: int
    ratios: Sequence[float]
    """Speed of the selected kernel relative to the baseline, by problem that both have."""
    best: Sequence[float]
    """Speed of the best kernel relative to the baseline, by the same problems."""
    reached: Sequence[float]
    """Speed of the selected kernel relative to the best."""
    between: tuple[Sequence[float], Sequence[float]]
    """``ratios`` of the selected kernel's slow rounds and the baseline's fast ones, and the other way round: of their
    quartiles, by problem."""
    rounds: int
    """That a time of the selected kernel, the best or the baseline is the median of, at least."""


@cache
def lines(table: Table) -> Sequence[Line]:
    """The newest sweep of each type that a table is of."""
    path = RESULTS / f"{table.file}.parquet"
    found: dict[str, str] = {}
    for sweep in sorted(sweeps_of(path)):
        for name, prefix in TYPES.items():
            if any(fnmatch(sweep, f"{prefix}-{pattern}") for pattern in table.sweeps):
                found[name] = sweep
    measured: dict[str, list[Measurement]] = {sweep: [] for sweep in found.values()}
    for m in read_sweeps(path, measured):
        measured[m.run].append(m)
    return [_line(name, found[name], measured[found[name]], table) for name in TYPES if name in found]


def _line(name: str, sweep: str, measurements: Sequence[Measurement], table: Table) -> Line:
    chosen = [(f, m) for f in figures(measurements) for m in f.finalists.values() if table.chooser in m.chosen]
    first = measurements[0]
    return Line(
        name,
        sweep,
        first.commit,
        first.driver,
        len(chosen),
        _present_figures(chosen, lambda f, m: f.over(m, table.baseline)),
        _present_figures(chosen, lambda f, m: f.over(f.best, table.baseline)),
        _present_figures(chosen, lambda f, m: f.reached([m.sliced])),
        (
            _present_figures(chosen, lambda f, m: _of_quartiles(f, m, table.baseline, slow=True)),
            _present_figures(chosen, lambda f, m: _of_quartiles(f, m, table.baseline, slow=False)),
        ),
        min(x.samples for f, m in chosen if (b := f.baselines.get(table.baseline)) for x in (m, f.best, b) if x),
    )


def _of_quartiles(f: Figures, m: Measurement, baseline: str, *, slow: bool) -> float | None:
    """Speed of a kernel in its slow rounds relative to a baseline in its fast ones, or the other way round."""
    ratio, other = f.over(m, baseline), f.baselines.get(baseline)
    if ratio is None or other is None:
        return None
    own, theirs = (m.high_us, other.low_us) if slow else (m.low_us, other.high_us)
    if None in (own, theirs, m.us, other.us):
        return None
    return ratio * (m.us / own) * (theirs / other.us)  # type: ignore[operator]


def _present_figures(
    chosen: Sequence[tuple[Figures, Measurement]], figure: Callable[[Figures, Measurement], float | None]
) -> list[float]:
    return [value for f, m in chosen if (value := figure(f, m)) is not None]


def markdown(tables: Sequence[Table] = TABLES) -> str:
    """What the page must hold, of all tables or some."""
    return "\n".join([_HEAD, *(text for table in tables for text in _section(table))])


def _section(table: Table) -> list[str]:
    rows = [
        f"## {table.title}",
        "",
        *wrap(table.about, 120),
        "",
        f"Baseline: `{table.baseline}`.",
        "",
        "| type | selected | best | least, 5th, 95th percentile | wins | of the best | problems | rounds "
        "| sweep, commit, driver |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines(table):
        low, *_, high = quantiles(line.ratios, n=20, method="inclusive")
        wins = sum(ratio > 1 for ratio in line.ratios) / len(line.ratios)
        slow, fast = (round(geometric_mean(ratios) or 0.0, 3) for ratios in line.between)
        mark = " ≈" if slow <= 1 <= fast else ""
        rows.append(
            f"| {line.type} | **{_mean(line.ratios)}** ({slow:.3f} to {fast:.3f}){mark} | {_mean(line.best)} "
            f"| {min(line.ratios):.3f}, {low:.2f}, {high:.2f} | {wins:.0%} | {_mean(line.reached)} "
            f"| {len(line.ratios)} | {line.rounds}{'*' if line.rounds < FEWEST_ROUNDS else ''} "
            f"| `{line.sweep}`, {line.commit[:7]}, {line.driver} |"
        )
    return [*rows, ""]


def _mean(values: Sequence[float]) -> str:
    return f"{geometric_mean(values) or 0.0:.3f}"


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
