"""Which kernels were the fastest at the shapes of the suites: tables that a selector asks before its model.

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
    """The kernels of a problem in one run, and the fastest of those measured at length."""

    own: dict[SlicedKernel, Measurement]
    first: Measurement


def fastest(runs: Iterable[Iterable[Measurement]]) -> dict[str, Any]:
    """What a model's file has of measurements: of each problem the fastest kernels of the shipped sets.

    They are of those measured at length in the last run that has the problem, in the order of their times over the
    fastest's, the geometric mean of that run and up to three before: one alone may be lucky. Where a run looked at a
    kernel and did not measure it at length, it counts as its slowest that it did. Measurements without a cubin are
    passed over, runs that did not look at the kernel that was the fastest before and found none as fast, and problems
    whose operands are copied first, where kernels of other sets may be faster. A number of slices that was compiled in
    counts for the kernel of any number that ships in its place (1.017 of its time).
    """
    kernels: dict[SlicedKernel, int] = {}
    tables: dict[Any, dict[str, list[float]]] = defaultdict(dict)
    found = _by_problem(runs)
    for problem in sorted(found, key=lambda p: (str(formats_of(p)), p.m, p.n, p.k)):
        row = tables[formats_of(problem)][problem.extents] = []
        for kernel, us in _ranked(found[problem])[:FASTEST]:
            row += [kernels.setdefault(kernel, len(kernels)), float(f"{us:.4g}")]
    return {
        "kernels": [kernel.name for kernel in kernels],
        "slices": [kernel.slices for kernel in kernels],
        "tables": [
            {"formats": dict(zip(FORMATS, key, strict=True)), "problems": table} for key, table in tables.items()
        ],
    }


def _by_problem(runs: Iterable[Iterable[Measurement]]) -> dict[GemmProblem, list[dict[SlicedKernel, Measurement]]]:
    """What runs found of each problem of the suites: kernels of the sets, with times as they count."""
    shipped = shipped_suites()
    suites = {(s.m, s.n, s.k) for suite in SUITES for s in load_shapes(shipped[suite]).shapes}
    found: dict[GemmProblem, list[dict[SlicedKernel, Measurement]]] = defaultdict(list)
    for measurements in runs:
        counted = (
            m.model_copy(update={"kernel": kernel.name, "slices": kernel.slices})
            for m in measurements
            if m.us and m.digest and m.holds != "nothing" and (kernel := _shipped(m.sliced))
        )
        for problem, own in of_problem(counted).items():
            slowest = max((us_of(m) for m in own.values() if m.stage == "final"), default=None)
            if (problem.m, problem.n, problem.k) in suites and slowest and not is_realigned(problem):
                brief = {
                    kernel: m.model_copy(update={"us": slowest}) for kernel, m in own.items() if m.stage != "final"
                }
                found[problem].append(own | brief)
    return found


@cache
def _kernels() -> frozenset[SlicedKernel]:
    """The kernels that tables may name."""
    configs = (config for name in SETS for config in load_manifest(shipped_manifest(name)).expand())
    return frozenset(kernel for c in configs for kernel in in_each_number(kernel_name(c), c))


def _shipped(kernel: SlicedKernel) -> SlicedKernel | None:
    """The kernel, or the one that ships in its place; None where there is neither."""
    present = kernel._replace(name=COMPILED_IN.sub(f"_{SPLIT_K}_", kernel.name))
    return present if present in _kernels() else None


def _ranked(runs: Sequence[dict[SlicedKernel, Measurement]]) -> list[tuple[SlicedKernel, float]]:
    """Kernels and microseconds of the last run, the fastest first."""
    telling: list[_OfRun] = []
    for own in sorted(runs, key=lambda own: max(m.time for m in own.values())):
        first = min((m for m in own.values() if m.stage == "final"), key=us_of)
        if not telling or telling[-1].first.sliced in own or us_of(first) <= us_of(telling[-1].first):
            telling.append(_OfRun(own, first))
    recent = telling[-RECENT:]
    last, first = recent[-1]
    times_over = {
        kernel: geometric_mean(us_of(own[kernel]) / us_of(best) for own, best in recent if kernel in own)
        for kernel, m in last.items()
        if m.stage == "final"
    }
    least = us_of(first) / min(times_over.values())
    return [(kernel, least * over) for kernel, over in sorted(times_over.items(), key=lambda item: item[1])]
