"""The choice of the few kernels that a pack needs to run given problems nearly as fast as a whole manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from gemmill.cli import output
from gemmill.cli.options import warn_unserved
from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import PackError, UnsupportedProblemError
from gemmill.library.problem import GemmProblem, Regime
from gemmill.profiler.sweep.shape_suites import ShapeSuite
from gemmill.profiler.sweep.units import is_plain, units, unserved
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.selector import Selector
from gemmill.runtime.select.set_cover import set_cover


class Conditions(NamedTuple):
    """The measurements, GPU and objective that times are predicted for."""

    decisions: Sequence[Decision]
    """Measurements from --records."""
    gpu: Gpu
    objective: Regime


class SuiteTimes(NamedTuple):
    """The problems that a pack is made for, with the times of kernels on them."""

    times: dict[GemmProblem, dict[str, float]]
    """Microseconds of each kernel on each problem."""
    counts: Mapping[GemmProblem, int]
    """How often each problem ran or is listed."""
    shipped: list[Decision]
    """Shipped measurements of the problems."""


def kernels_for(
    configs: Sequence[GemmConfig], suite: ShapeSuite, under: Conditions, regret: float
) -> tuple[list[GemmConfig], SuiteTimes]:
    """Choose few kernels that run every problem of a suite within ``regret`` of the fastest kernel.

    A problem with an epilogue expression, groups or arrays gets the kernel that a registry over the manifest selects.

    Args:
        configs: the kernels to choose from.
        suite: the problems, with counts.
        under: what times are predicted for.
        regret: maximum slowdown of a problem, as a fraction of the time of its fastest kernel.

    Returns:
        The kernels, first those for the most frequent problems, and the times of all kernels on the problems.

    Raises:
        PackError: the suite has plain problems, but there is no plain kernel.
    """
    plain = list(filter(is_plain, configs))
    others = dict.fromkeys(unserved(plain, suite.shapes))
    special = _special(configs, [shape.problem for shape in others], under)
    if missing := [shape for shape in others if shape.problem not in special]:
        warn_unserved(missing, suite)
    if (left := sum(not is_plain(config) for config in configs)) and not others:
        output.complain(f"left out {left} kernels for groups, arrays or expressions, because no problem needs them")
    rest = [shape for shape in suite.shapes if shape not in others]
    if rest and not plain:
        raise PackError(f"no kernel supports {rest[0]}: all need groups, arrays or an expression; omit --shapes")
    counts: Counter[GemmProblem] = Counter()
    for shape in rest:
        counts.update(dict.fromkeys((unit.problem for unit in units(plain, [shape])), suite.counts.get(shape, 1)))
    times, measured, shipped = _times(plain, [*counts], under) if rest else ({}, {}, [])
    for shape in others:
        if choice := special.get(shape.problem):
            counts[shape.problem] += suite.counts.get(shape, 1)
            times[shape.problem] = measured[shape.problem] = {choice.name: choice.predicted_us}
    by_name = {kernel_name(config): config for config in plain}
    by_name |= {choice.name: choice.config for choice in special.values()}
    chosen = [by_name[name] for name in set_cover(measured, regret, counts)]
    return chosen, SuiteTimes(times, counts, shipped)


def _special(
    configs: Sequence[GemmConfig], problems: Sequence[GemmProblem], under: Conditions
) -> dict[GemmProblem, Choice]:
    """The kernel that a registry over these kernels selects for each problem that it supports. If no kernel has the
    expression of a problem, this is the closest kernel with that expression."""
    if not problems:
        return {}
    selector = Selector({kernel_name(config): config for config in configs}, under.gpu, under.decisions, varies=True)
    choices = {}
    for problem in problems:
        with suppress(UnsupportedProblemError):
            choices[problem] = selector.select(problem.with_narrow_a, objective=under.objective)
    return choices


def _times(
    configs: Sequence[GemmConfig], problems: Sequence[GemmProblem], under: Conditions
) -> tuple[dict[GemmProblem, dict[str, float]], dict[GemmProblem, dict[str, float]], list[Decision]]:
    """Predict the time of each kernel on every problem of a suite.

    Returns:
        Times of all kernels; times of only the measured kernels, or of the best kernels of a long run, where there are
        some; and the shipped measurements that are not among the decisions.

    Raises:
        UnsupportedProblemError: no kernel supports a problem.
    """
    selector = Selector({kernel_name(config): config for config in configs}, under.gpu, under.decisions)
    recorded = {(d.problem, d.sliced) for d in under.decisions if figures(d.gpu).name == selector.gpu.name}
    times: dict[GemmProblem, dict[str, float]] = {}
    measured_times: dict[GemmProblem, dict[str, float]] = {}
    shipped: list[Decision] = []
    for problem in problems:
        held = selector.under_power(problem) if under.objective == "sustained" else None
        measured = {kernel: us for us, kernel in selector.measured_on(problem)} if held is None else {}
        ranked = dict(held.runners_up) | {held.kernel: held.predicted_us} if held else measured
        completed = _completed(ranked, selector.times(problem))
        times[problem], measured_times[problem] = _of_cubins(completed), _of_cubins(ranked or completed)
        shipped += (
            Decision(problem=problem, gpu=selector.gpu.name, kernel=kernel.name, slices=kernel.slices, us=us)
            for kernel, us in measured.items()
            if (problem, kernel) not in recorded
        )
    if not times or not all(times.values()):
        unserved = next((str(problem) for problem, row in times.items() if not row), "the suite")
        raise UnsupportedProblemError(f"no kernel of the manifest supports {unserved} on {selector.gpu.name}")
    return times, measured_times, shipped


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
