"""Tables of the fastest measured kernels for the shapes of the suites, which the selector uses before its model.

``runtime/select/model_file.py`` reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import geometric_mean
from typing import Any, NamedTuple

from gemmill.library.config.names import SPLIT_K, kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel, in_each_number
from gemmill.library.manifest.load import load_manifest, shipped_manifest
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites
from gemmill.profiler.training.rows import COMPILED_IN, is_realigned, of_problem, us_of
from gemmill.runtime.select.model_file import FORMATS, formats_of

SUITES = (
    *("h200", "llm", "mid-rows", "deepseek", "uneven", "heads", "batched", "decimal"),
    *("input-gradients", "weight-gradients", "m-major", "deep-narrow"),
)
"""Suites whose shapes are in the tables."""
SETS = ("bf16", "f16", "fp8", "int8", "tf32")
"""Kernel sets whose kernels are in the tables."""
RECENT = 4
"""Maximum number of runs of a problem that determine its fastest kernels."""
FASTEST = 5
"""Number of kernels of a problem: the choice and its runners-up."""


class _OfRun(NamedTuple):
    """The kernels of a problem in one run, and the fastest finalist."""

    measurements: dict[SlicedKernel, Measurement]
    first: Measurement


def fastest(runs: Iterable[Iterable[Measurement]]) -> dict[str, Any]:
    """The tables in a model's file: for each problem, the fastest kernels of the built-in sets.

    The kernels are the finalists of the last run of the problem. They are ranked by their time relative to the fastest,
    as a geometric mean over that run and up to three earlier runs, since a single run may be an outlier. A kernel that
    was only screened in a run counts as its slowest finalist. Kernels with a compiled-in number of slices count as the
    kernel that replaces them.

    The tables omit measurements without a cubin, and problems whose operands are copied first, for which kernels of
    other sets may be faster. They also omit runs without the previously fastest kernel, unless these found a kernel
    that is at least as fast.
    """
    kernels: dict[SlicedKernel, int] = {}
    tables: dict[Any, dict[str, list[float]]] = defaultdict(dict)
    by_problem = _by_problem(runs)
    for problem in sorted(by_problem, key=lambda p: (str(formats_of(p)), p.m, p.n, p.k)):
        row = tables[formats_of(problem)][problem.extents] = []
        for kernel, us in _ranked(by_problem[problem])[:FASTEST]:
            row += [kernels.setdefault(kernel, len(kernels)), float(f"{us:.4g}")]
    return {
        "kernels": [kernel.name for kernel in kernels],
        "slices": [kernel.slices for kernel in kernels],
        "tables": [
            {"formats": dict(zip(FORMATS, key, strict=True)), "problems": table} for key, table in tables.items()
        ],
    }


def _by_problem(runs: Iterable[Iterable[Measurement]]) -> dict[GemmProblem, list[dict[SlicedKernel, Measurement]]]:
    """The measurements of each problem of the suites in each run, for kernels of the sets, with adjusted times."""
    shipped = shipped_suites()
    suites = {(s.m, s.n, s.k) for suite in SUITES for s in load_shapes(shipped[suite]).shapes}
    by_problem: dict[GemmProblem, list[dict[SlicedKernel, Measurement]]] = defaultdict(list)
    for measurements in runs:
        adjusted = (
            m.model_copy(update={"kernel": kernel.name, "slices": kernel.slices})
            for m in measurements
            if m.us and m.digest and m.holds != "nothing" and (kernel := _shipped(m.sliced))
        )
        for problem, by_kernel in of_problem(adjusted).items():
            slowest = max((us_of(m) for m in by_kernel.values() if m.stage == "final"), default=None)
            if (problem.m, problem.n, problem.k) in suites and slowest and not is_realigned(problem):
                brief = {
                    kernel: m.model_copy(update={"us": slowest})
                    for kernel, m in by_kernel.items()
                    if m.stage != "final"
                }
                by_problem[problem].append(by_kernel | brief)
    return by_problem


@cache
def _kernels() -> frozenset[SlicedKernel]:
    """The kernels that tables may contain."""
    configs = (config for name in SETS for config in load_manifest(shipped_manifest(name)).expand())
    return frozenset(kernel for c in configs for kernel in in_each_number(kernel_name(c), c))


def _shipped(kernel: SlicedKernel) -> SlicedKernel | None:
    """The kernel, or the one that replaces it; None without either."""
    present = kernel._replace(name=COMPILED_IN.sub(f"_{SPLIT_K}_", kernel.name))
    return present if present in _kernels() else None


def _ranked(runs: Sequence[dict[SlicedKernel, Measurement]]) -> list[tuple[SlicedKernel, float]]:
    """Kernels of the last run with their microseconds, the fastest first."""
    telling: list[_OfRun] = []
    for run in sorted(runs, key=lambda run: max(m.time for m in run.values())):
        first = min((m for m in run.values() if m.stage == "final"), key=us_of)
        if not telling or telling[-1].first.sliced in run or us_of(first) <= us_of(telling[-1].first):
            telling.append(_OfRun(run, first))
    recent = telling[-RECENT:]
    last, first = recent[-1]
    times_over = {
        kernel: geometric_mean(us_of(run[kernel]) / us_of(best) for run, best in recent if kernel in run)
        for kernel, m in last.items()
        if m.stage == "final"
    }
    least = us_of(first) / min(times_over.values())
    return [(kernel, least * over) for kernel, over in sorted(times_over.items(), key=lambda item: item[1])]
