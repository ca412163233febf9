"""The choice of the few kernels that a pack needs to run given problems nearly as fast as all kernels would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from gemmill.cli.kernel_sets import KernelSets, warn_unsupported
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem, Regime
from gemmill.profiler.sweep.shape_suites import Shape, ShapeSuite
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.set_cover import set_cover
from gemmill.runtime.select.table_making import between

BETWEEN = 0.15
"""Maximum slowdown at sizes between the problems that are no powers of two, unless the caller allows more. Within 3% at
every size, Llama-3.1-8B would need 59 kernels instead of 26."""


class Conditions(NamedTuple):
    """What times are predicted for, and how much time the chosen kernels may lose."""

    registry: Registry
    """Selects the kernels, for its GPU and from its measurements."""
    objective: Regime
    regret: float
    """Maximum slowdown of a problem, as a fraction of the time of its fastest kernel."""
    bits: str
    """Which bits the kernels must give: a value of ``bits=`` (library/bits.py)."""


class SuiteTimes(NamedTuple):
    """The problems that a pack is made for, with the times of kernels on them."""

    times: dict[GemmProblem, dict[str, float]]
    """Microseconds of each kernel on each problem, and on those of the same layers between the smallest and the largest
    one, for which the choice table of the pack names kernels too."""
    counts: Mapping[GemmProblem, int]
    """How often each problem ran or is listed; lacks those between."""
    shipped: list[Decision]
    """Shipped measurements of the problems."""


def kernels_for(sets: KernelSets, suite: ShapeSuite, under: Conditions) -> tuple[list[GemmConfig], SuiteTimes]:
    """Choose few kernels that run every problem of a suite within a slowdown of the fastest kernel.

    So they do at the powers of two between the smallest and the largest problem of a layer; at other sizes between
    them, the slowdown is at most :data:`BETWEEN`, or that of the problems if it is larger.

    Args:
        sets: the kernels to choose from.
        suite: the problems, with counts.
        under: what times are predicted for, and the slowdown.

    Returns:
        The kernels, first those for the most frequent problems, and the times of all kernels on the problems.

    Raises:
        UnsupportedProblemError: no kernel supports any problem of the suite.
    """
    rows: dict[GemmProblem, _Row | None] = {}
    counts: Counter[GemmProblem] = Counter()
    missing: list[Shape] = []
    for shape in suite.shapes:
        problems = sets.problems_of(shape)
        for problem in problems:
            if problem not in rows:
                rows[problem] = _row(problem, under)
        supported = [problem for problem in problems if rows[problem]]
        counts.update(dict.fromkeys(supported, suite.counts.get(shape, 1)))
        if not supported:
            missing.append(shape)
    if missing:
        warn_unsupported(missing, suite, sets, under.bits)
    found = {problem: row for problem, row in rows.items() if row}
    allowed = dict.fromkeys(found, under.regret)
    for problem, value in between(found).items():
        if row := _row(problem, under):
            found[problem] = row
            allowed[problem] = under.regret if value.bit_count() == 1 else max(under.regret, BETWEEN)
    times = {problem: row.times for problem, row in found.items()}
    chosen = set_cover({problem: row.ranked for problem, row in found.items()}, allowed, counts)
    return [*map(parse_name, chosen)], SuiteTimes(times, counts, _shipped(found, under.registry))


class _Row(NamedTuple):
    """The times of kernels on one problem, in microseconds."""

    times: dict[str, float]
    """Of all kernels."""
    ranked: dict[str, float]
    """Of the measured kernels alone, or of the candidates for a long run, where there are some."""
    measured: Mapping[SlicedKernel, float]
    """The measured times that ``ranked`` contains, by number of K slices."""


def _row(problem: GemmProblem, under: Conditions) -> _Row | None:
    """The times of kernels on a problem; None if no kernel supports it."""
    try:
        arithmetic = under.registry.arithmetic(problem, under.bits)
        problem = problem.with_narrow_a
        selector = under.registry.selector_for(problem)
        modelled = selector.times(problem, arithmetic)
        if not modelled:
            return None
        held = selector.times_under_power(problem, under.objective, arithmetic)
    except UnsupportedProblemError:
        return None
    measured = {kernel: us for us, kernel in selector.measured_on(problem, arithmetic)} if held is None else {}
    ranked = held or measured
    completed = _completed(ranked, modelled)
    return _Row(_of_cubins(completed), _of_cubins(ranked or completed), measured)


def _shipped(rows: Mapping[GemmProblem, _Row], registry: Registry) -> list[Decision]:
    """The measured times that are not among those of the caller."""
    gpu = registry.gpu.name
    callers = {(d.problem, d.sliced) for d in registry.recorded if figures(d.gpu).name == gpu}
    return [
        Decision(problem=problem.with_narrow_a, gpu=gpu, kernel=kernel.name, slices=kernel.slices, us=us)
        for problem, row in rows.items()
        for kernel, us in row.measured.items()
        if (problem.with_narrow_a, kernel) not in callers
    ]


def _of_cubins(times: Mapping[SlicedKernel, float]) -> dict[str, float]:
    """The shortest time of each kernel over its numbers of K slices."""
    least: dict[str, float] = {}
    for kernel, us in times.items():
        least[kernel.name] = min(us, least.get(kernel.name, us))
    return least


def _completed(measured: dict[SlicedKernel, float], modelled: dict[SlicedKernel, float]) -> dict[SlicedKernel, float]:
    """Complete measured times with times of the model for the other kernels. The model's times are scaled to match the
    fastest measured kernel, and are at least the time of the slowest one."""
    if not measured:
        return modelled
    fastest, slowest = min(measured, key=lambda kernel: measured[kernel]), max(measured.values())
    scale = measured[fastest] / modelled[fastest] if fastest in modelled else 1.0
    return {kernel: max(us * scale, slowest) for kernel, us in modelled.items()} | measured
