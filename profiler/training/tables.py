"""Which kernels were the fastest at the shapes of the suites: tables that a selector asks before its model.

``runtime/select/model_file.py`` reads them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import geometric_mean
from typing import Any, NamedTuple

from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.launched import numbered
from gemmill.library.manifest.load import load_manifest, shipped_manifest
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites
from gemmill.profiler.training.rows import is_realigned, of_problem, us_of
from gemmill.runtime.select.model_file import FORMATS, formats_of

SUITES = (
    *("h200", "llm", "deepseek", "uneven", "heads", "batched", "decimal"),
    *("input-gradients", "weight-gradients", "m-major", "deep-narrow"),
)
"""Whose shapes ship with what was measured of them."""
SETS = ("bf16", "f16", "fp8", "int8", "tf32")
"""Whose kernels."""
RECENT = 4
"""Runs of a problem, at most, that tell which kernels were the fastest there."""
FASTEST = 5
"""How many kernels of a problem: what a choice names, its runners-up among them."""


class _OfRun(NamedTuple):
    """The kernels of a problem in one run, by name, and the fastest of those measured at length."""

    own: dict[str, Measurement]
    first: Measurement


def fastest(runs: Iterable[Iterable[Measurement]]) -> dict[str, Any]:
    """What a model's file has of measurements: of each problem the fastest kernels of the shipped sets.

    They are of those measured at length in the last run that has the problem, in the order of their times over the
    fastest's, the geometric mean of that run and up to three before: one alone may be lucky. Where a run looked at a
    kernel and did not measure it at length, it counts as its slowest that it did. Measurements without a cubin are
    passed over, runs that did not look at the kernel that was the fastest before and found none as fast, and problems
    whose operands are copied first, where kernels of other sets may be faster. A number of slices that was compiled in
    counts for the kernel of any number that ships in its place (docs/performance/decompositions.md: 1.017 of its time).
    """
    kernels: dict[str, int] = {}
    tables: dict[Any, dict[str, list[float]]] = defaultdict(dict)
    found = _by_problem(runs)
    for problem in sorted(found, key=lambda p: (str(formats_of(p)), p.m, p.n, p.k)):
        row = tables[formats_of(problem)][problem.extents] = []
        for name, us in _ranked(found[problem])[:FASTEST]:
            row += [kernels.setdefault(name, len(kernels)), float(f"{us:.4g}")]
    return {
        "kernels": [*kernels],
        "tables": [
            {"formats": dict(zip(FORMATS, key, strict=True)), "problems": table} for key, table in tables.items()
        ],
    }


def _by_problem(runs: Iterable[Iterable[Measurement]]) -> dict[GemmProblem, list[dict[str, Measurement]]]:
    """What runs found of each problem of the suites: kernels of the sets by name, with times as they count."""
    shipped = shipped_suites()
    suites = {(s.m, s.n, s.k) for suite in SUITES for s in load_shapes(shipped[suite]).shapes}
    found: dict[GemmProblem, list[dict[str, Measurement]]] = defaultdict(list)
    for measurements in runs:
        counted = (
            m.model_copy(update={"kernel": name})
            for m in measurements
            if m.us and m.digest and m.holds != "nothing" and (name := _shipped(m.kernel))
        )
        for problem, own in of_problem(counted).items():
            slowest = max((us_of(m) for m in own.values() if m.stage == "final"), default=None)
            if (problem.m, problem.n, problem.k) in suites and slowest and not is_realigned(problem):
                brief = {name: m.model_copy(update={"us": slowest}) for name, m in own.items() if m.stage != "final"}
                found[problem].append(own | brief)
    return found


@cache
def _names() -> frozenset[str]:
    """The kernels that tables may name."""
    sets = (load_manifest(shipped_manifest(name)) for name in SETS)
    return frozenset(numbered({kernel_name(config): config for own in sets for config in own.expand()}))


def _shipped(kernel: str) -> str | None:
    """The kernel, or the one that ships in its place; None where there is neither."""
    names = (kernel, re.sub(r"_k(\d+)split_", r"_k\1splitk_", kernel))
    return next((name for name in names if name in _names()), None)


def _ranked(runs: Sequence[dict[str, Measurement]]) -> list[tuple[str, float]]:
    """Kernels and microseconds of the last run, the fastest first."""
    telling: list[_OfRun] = []
    for own in sorted(runs, key=lambda own: max(m.time for m in own.values())):
        first = min((m for m in own.values() if m.stage == "final"), key=us_of)
        if not telling or telling[-1].first.kernel in own or us_of(first) <= us_of(telling[-1].first):
            telling.append(_OfRun(own, first))
    recent = telling[-RECENT:]
    last, first = recent[-1]
    times_over = {
        name: geometric_mean(us_of(own[name]) / us_of(best) for own, best in recent if name in own)
        for name, m in last.items()
        if m.stage == "final"
    }
    least = us_of(first) / min(times_over.values())
    return [(name, least * times_over[name]) for name in sorted(times_over, key=lambda name: times_over[name])]
