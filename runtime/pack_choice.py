"""The choice of the few kernels that a pack needs to run given problems nearly as fast as all kernels would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem, Regime
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.set_cover import set_cover
from gemmill.runtime.select.table_making import between

REGRET = 0.01
"""Maximum slowdown of a problem, unless the caller chooses another. For Llama-3.1-8B with 1 to 8,192 tokens, 31 kernels
then lose 0.1% on average; 25 kernels would lose 0.7% with 0.03."""
BETWEEN = 0.15
"""Maximum slowdown at sizes between the problems that are no powers of two, unless the caller allows more. Within
1% at every size, Llama-3.1-8B would need 81 kernels."""


class Conditions(NamedTuple):
    """What times are predicted for, and how much time the chosen kernels may lose."""

    registry: Registry
    """Selects the kernels, for its GPU and from its measurements."""
    objective: Regime
    regret: float
    """Maximum slowdown of a problem, as a fraction of the time of its fastest kernel."""
    bits: str
    """Which bits the kernels must give: a value of ``bits=`` (library/bits.py)."""


class Row(NamedTuple):
    """The times of kernels on one problem, in microseconds."""

    times: dict[str, float]
    """Of all kernels."""
    ranked: dict[str, float]
    """Of the measured kernels alone, or of the candidates for a long run, where there are some."""
    measured: Mapping[SlicedKernel, float]
    """The measured times that ``ranked`` contains, by number of K slices."""


def supported(problems: Iterable[GemmProblem], under: Conditions) -> dict[GemmProblem, Row]:
    """Return the problems that kernels support, with the times of these."""
    rows = ((problem, _row(problem, under)) for problem in dict.fromkeys(problems))
    return {problem: row for problem, row in rows if row}


class PackChoice(NamedTuple):
    """The kernels of a pack, and what they were chosen by."""

    configs: list[GemmConfig]
    """First those for the most frequent problems."""
    times: dict[GemmProblem, dict[str, float]]
    """Microseconds of each kernel on each problem, and on those of the same layers between the smallest and the largest
    one, for which the choice table of the pack names kernels too."""
    shipped: list[Decision]
    """Shipped measurements of the problems."""


def kernels_for(rows: Mapping[GemmProblem, Row], counts: Mapping[GemmProblem, int], under: Conditions) -> PackChoice:
    """Choose few kernels that run every problem within a slowdown of the fastest kernel.

    So they do at the powers of two between the smallest and the largest problem of a layer; at other sizes between
    them, the slowdown is at most :data:`BETWEEN`, or that of the problems if it is larger.

    Args:
        rows: the problems.
        counts: how often each occurs.
        under: what times are predicted for, and the slowdown.
    """
    values = between(rows)
    of_all = {**rows, **supported(values, under)}
    allowed = {
        problem: max(under.regret, 0 if values.get(problem, 1).bit_count() == 1 else BETWEEN) for problem in of_all
    }
    chosen = set_cover({problem: row.ranked for problem, row in of_all.items()}, allowed, counts)
    times = {problem: row.times for problem, row in of_all.items()}
    return PackChoice([*map(parse_name, chosen)], times, _shipped(of_all, under.registry))


def _row(problem: GemmProblem, under: Conditions) -> Row | None:
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
    times = _of_cubins(_completed(ranked, modelled))
    return Row(times, _of_cubins(ranked) if ranked else times, measured)


def _shipped(rows: Mapping[GemmProblem, Row], registry: Registry) -> list[Decision]:
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
