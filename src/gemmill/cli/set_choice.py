"""Which kernels a pack needs, so that given problems lose little to all kernels of a manifest."""

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
    """What says how fast kernels are."""

    decisions: Sequence[Decision]
    """Measurements that were given."""
    gpu: Gpu
    objective: Regime


class SuiteTimes(NamedTuple):
    """The problems that a pack is for."""

    times: dict[GemmProblem, dict[str, float]]
    """What kernels take on each."""
    counts: Mapping[GemmProblem, int]
    """How often each ran, or is listed."""
    shipped: list[Decision]
    """Measurements of them that ship."""


def kernels_for(
    configs: Sequence[GemmConfig], suite: ShapeSuite, under: Conditions, regret: float
) -> tuple[list[GemmConfig], SuiteTimes]:
    """About as few kernels as solve every shape of a suite nearly as fast as all, those first that serve what runs most
    often; and what kernels take on each problem. Shapes that say more than kernels of matrices alone do, an epilogue or
    groups, get the kernel each that a registry over the manifest would take."""
    plain = list(filter(is_plain, configs))
    others = dict.fromkeys(unserved(plain, suite.shapes))
    special = _special(configs, [shape.problem for shape in others], under)
    if missing := [shape for shape in others if shape.problem not in special]:
        warn_unserved(missing, suite)
    if (left := sum(not is_plain(config) for config in configs)) and not others:
        output.complain(f"{left} kernels are left out: they are for groups or arrays, or have an expression")
    rest = [shape for shape in suite.shapes if shape not in others]
    if rest and not plain:
        raise PackError("no kernel is left that shapes alone say what to run; leave out --shapes")
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
    """What a registry over these kernels would take for each problem that it can serve: with an expression that none
    of them has, the nearest one with it."""
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
    """Times on a GPU of the kernels on every problem of a suite: of all kernels; of those alone that were measured on
    it, if any were, or that are the best in a long run; and which measurements are none of the decisions."""
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
        raise UnsupportedProblemError(f"no kernel of the manifest for {selector.gpu.name} solves {unserved}")
    return times, measured_times, shipped


def _of_cubins(times: Mapping[SlicedKernel, float]) -> dict[str, float]:
    """The least time of each kernel, in whatever slices."""
    least: dict[str, float] = {}
    for kernel, us in times.items():
        least[kernel.name] = min(us, least.get(kernel.name, us))
    return least


def _completed(measured: dict[SlicedKernel, float], modelled: dict[SlicedKernel, float]) -> dict[SlicedKernel, float]:
    """Times of all kernels: those measured, or said of long runs, and of others the model's, scaled to the fastest of
    these, but no less than the slowest of them."""
    if not measured:
        return modelled
    fastest, slowest = min(measured, key=lambda kernel: measured[kernel]), max(measured.values())
    scale = measured[fastest] / modelled[fastest] if fastest in modelled else 1.0
    return {kernel: max(us * scale, slowest) for kernel, us in modelled.items()} | measured
