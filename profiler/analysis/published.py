"""Writes the published tables, ``docs/performance/results.md``, from the measurements that the repository keeps.

``python -m gemmill.profiler.analysis.published`` writes the page. Each row of :data:`TABLES` describes one table: it
takes the newest sweep of each type. Every kernel and baseline of a problem was timed in the same rounds.
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
"""Types of A and B, with the prefix of the names of their sweeps."""
FEWEST_ROUNDS = 9
"""The page marks rows with fewer rounds."""


class Table(NamedTuple):
    """One table of the page."""

    title: str
    file: str
    """Name of the Parquet file, without its suffix."""
    sweeps: tuple[str, ...]
    """Patterns of names of sweeps, after the type."""
    baseline: str
    """Name of the baseline in the records; the title names any but cuBLASLt."""
    chooser: str
    """The selector whose kernel the table is about: :attr:`~gemmill.library.records.Measurement.chosen`."""
    about: str


AS_ABOVE = "The problems of the first table."
LAYERS = (
    "Suites `h200` and `llm`: 20 GEMMs of mixed shapes and the projections of eleven public models, with 1 to 16,384"
    " rows. For each problem the sweep measured the four kernels that the selector ranks first, and its choice."
)
DRAWN = "Suite `drawn`: random rows and layers. No model and no table was fitted to these problems."
KMAJOR = ("drawn-20261128T191[789]*", "drawn-20261128T192006Z")
ROW_MAJOR = ("drawn-20261128T192134Z",)
H200 = "h200-others"
TABLES = (
    Table(
        "Layers of language models, H200, relative to cuBLASLt", H200, ("h200+llm-*",), "cublaslt", "selected", LAYERS
    ),
    Table(
        "Layers of language models, H100, relative to cuBLASLt",
        "h100-others",
        ("h200+llm-*",),
        "cublaslt",
        "selected",
        AS_ABOVE,
    ),
    Table(
        "Layers of language models, H200, relative to cuBLAS in PyTorch",
        H200,
        ("h200+llm-*",),
        "cublas",
        "selected",
        AS_ABOVE,
    ),
    Table("Random problems, H200", H200, KMAJOR, "cublaslt", "selected", DRAWN),
    Table("Random problems with a row-major B, H200", H200, ROW_MAJOR, "cublaslt", "selected", DRAWN),
    Table(
        "Gradients of inputs, H200",
        H200,
        ("input-gradients-*",),
        "cublaslt",
        "selected",
        "Suite `input-gradients`: B is row-major.",
    ),
    Table(
        "Gradients of weights, H200",
        H200,
        ("weight-gradients-*",),
        "cublaslt",
        "selected",
        "Suite `weight-gradients`: A is M-major and B is N-major.",
    ),
    Table(
        "Few rows times row-major weights, H200",
        H200,
        ("row-major-few-*",),
        "cublaslt",
        "selected",
        "Layers of suite `llm` with 1, 16, 64 and 256 rows.",
    ),
    Table(
        "Batched GEMMs, H200",
        H200,
        ("batched-*",),
        "cublaslt",
        "selected",
        "Suite `batched`: attention heads and experts.",
    ),
    Table(
        "Layers outside the suites, H200",
        H200,
        ("unseen-layers-*",),
        "cublaslt",
        "selected",
        "24 problems from layers that no earlier run had measured.",
    ),
    Table(
        "Rows that TMA cannot load, H200",
        H200,
        ("unaligned-*",),
        "cublaslt",
        "selected",
        "Suite `unaligned`, for example K = 4097. The table leaves out problems for which cuBLASLt has no kernel.",
    ),
)
_HEAD = """# Results

This page is for readers who want each published figure with its record; a test compares it with
`profiler/results/*.parquet`. [method.md](method.md) describes the measurements, [reproduce.md](reproduce.md) lists the
commands. All tables show bursts, at full clock; [sustained.md](sustained.md) has the figures at the power limit. Each
row is one sweep on one GPU.

The baseline is cuBLASLt's first algorithm, unless the title names another. The columns mean:

- **selected**: speed of the kernel that the selector picks, relative to the baseline. It is the baseline's time divided
  by the kernel's, as a geometric mean over problems: above 1, gemmill is faster. The range compares opposite quartiles
  over rounds. Where it contains 1, the mark ≈ shows no difference.
- **fastest**: the same for the fastest of all kernels that the sweep measured.
- **worst**, **p5**, **p95**: the lowest value, the 5th and the 95th percentile of that speed over problems.
- **faster**: share of problems where the selected kernel beats the baseline.
- **selected / fastest**: the selected kernel's speed relative to the fastest, as a geometric mean.
- **problems**: their number. Each time is the median of at least nine rounds; the mark * shows fewer.
"""


class Line(NamedTuple):
    """The figures of one sweep."""

    type: str
    sweep: str
    commit: str
    driver: str
    problems: int
    ratios: Sequence[float]
    """Speed of the selected kernel relative to the baseline, for each problem that both have."""
    best: Sequence[float]
    """Speed of the fastest kernel relative to the baseline, for the same problems."""
    reached: Sequence[float]
    """Speed of the selected kernel relative to the fastest."""
    between: tuple[Sequence[float], Sequence[float]]
    """``ratios`` from opposite quartiles, for each problem: the selected kernel's slow rounds with the baseline's fast
    rounds, and the reverse."""
    rounds: int
    """The fewest rounds behind a time of the selected kernel, the fastest kernel or the baseline."""


@cache
def lines(table: Table) -> Sequence[Line]:
    """The newest sweep of each type, for one table."""
    path = RESULTS / f"{table.file}.parquet"
    newest: dict[str, str] = {}
    for sweep in sorted(sweeps_of(path)):
        for name, prefix in TYPES.items():
            if any(fnmatch(sweep, f"{prefix}-{pattern}") for pattern in table.sweeps):
                newest[name] = sweep
    measured: dict[str, list[Measurement]] = {sweep: [] for sweep in newest.values()}
    for m in read_sweeps(path, measured):
        measured[m.run].append(m)
    return [_line(name, newest[name], measured[newest[name]], table) for name in TYPES if name in newest]


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
    """Speed of a kernel in its slow rounds relative to a baseline in its fast rounds, or the reverse."""
    ratio, other = f.over(m, baseline), f.baselines.get(baseline)
    if ratio is None or other is None:
        return None
    kernel_us, baseline_us = (m.high_us, other.low_us) if slow else (m.low_us, other.high_us)
    if None in (kernel_us, baseline_us, m.us, other.us):
        return None
    return ratio * (m.us / kernel_us) * (baseline_us / other.us)  # type: ignore[operator]


def _present_figures(
    chosen: Sequence[tuple[Figures, Measurement]], figure: Callable[[Figures, Measurement], float | None]
) -> list[float]:
    return [value for f, m in chosen if (value := figure(f, m)) is not None]


def markdown(tables: Sequence[Table] = TABLES) -> str:
    """The text of the page, with all tables or some."""
    return "\n".join([_HEAD, *(text for table in tables for text in _section(table))])


def _section(table: Table) -> list[str]:
    rows = [
        f"## {table.title}",
        "",
        *wrap(table.about, 120),
        "",
        "| type | selected | fastest | worst, p5, p95 | faster | selected / fastest "
        "| problems | sweep, commit, driver |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines(table):
        low, *_, high = quantiles(line.ratios, n=20, method="inclusive")
        wins = sum(ratio > 1 for ratio in line.ratios) / len(line.ratios)
        slow, fast = (round(geometric_mean(ratios) or 0.0, 3) for ratios in line.between)
        mark = " ≈" if slow <= 1 <= fast else ""
        rows.append(
            f"| {line.type} | **{_mean(line.ratios)}** ({slow:.3f} to {fast:.3f}){mark} | {_mean(line.best)} "
            f"| {min(line.ratios):.3f}, {low:.2f}, {high:.2f} | {wins:.0%} | {_mean(line.reached)} "
            f"| {len(line.ratios)}{'*' if line.rounds < FEWEST_ROUNDS else ''} "
            f"| `{line.sweep}`, {line.commit[:7]}, {line.driver} |"
        )
    return [*rows, ""]


def _mean(values: Sequence[float]) -> str:
    return f"{geometric_mean(values) or 0.0:.3f}"


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
