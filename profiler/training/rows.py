"""Measurements as a model is trained on them.

Of each problem of a run its kernels, with what the analytic model says of them and how long they took.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.runtime.launch.tma import ALIGNMENT
from gemmill.runtime.select.cost.model import analytic, features
from gemmill.runtime.select.cost.table import Entry, FeatureTable
from gemmill.runtime.select.kernels.faults import needs_swap

COMPILED_IN, SUMMED_INSIDE = re.compile(r"_k\d+split_"), re.compile(r"_k\d+fused_")
"""Names of split-K kernels in records of before the number of slices was an argument: those whose number was compiled
in, and those that summed without a second kernel. Such as the latter there are none today, and they are not learnt
from."""
OF_ARGUMENT = 1.017
"""Time of a split-K kernel over that of one with a number that is compiled in, the median of 27 pairs."""
_ROUNDS = 6
"""Of the least squares of times by kernel and run."""
SHARPNESS = 5.0
"""How much less a kernel weighs the slower it is: those that are e^(1/5) times as slow as the best weigh 1/e."""


@dataclass(frozen=True)
class Rows:
    """The kernels of a problem."""

    problem: GemmProblem
    kernels: tuple[SlicedKernel, ...]
    features: Any
    """(kernels, inputs of the network), in the order of ``model_file.INPUTS``."""
    analytic: Any
    """Logarithms of the analytic model's times; so the measured ones."""
    measured: Any
    best: float
    """Least measured time at length, logarithm."""
    gpu: str
    """Name of its row."""

    @property
    def weights(self) -> Any:
        """Of each kernel, in all 1."""
        weights = np.exp(-SHARPNESS * (self.measured - self.measured.min()))
        return weights / weights.sum()


def us_of(measurement: Measurement) -> float:
    """The time of a kernel that was timed."""
    assert measurement.us is not None
    return measurement.us


def _us_today(measurement: Measurement) -> float:
    """The time that a kernel takes whose number of slices is an argument."""
    return us_of(measurement) * (OF_ARGUMENT if COMPILED_IN.search(measurement.kernel) else 1)


def of_problem(measurements: Iterable[Measurement]) -> dict[GemmProblem, dict[SlicedKernel, Measurement]]:
    """Measurements by problem and kernel; of a kernel measured again, the last."""
    times: dict[GemmProblem, dict[SlicedKernel, Measurement]] = defaultdict(dict)
    for m in measurements:
        times[m.problem][m.sliced] = m
    return times


def rows_of(measurements: Iterable[Measurement], gpu: Gpu) -> Iterator[Rows]:
    """The kernels of each problem that the residual model is for, of one run: times of several do not compare. Times
    with copies of operands are none that it corrects, and of those that hold no more there are none.

    Brief measurements were at other clocks: they are scaled so that none seems faster than the finalists, of which the
    slowest two may have been pinned.
    """
    times = of_problem(m for m in measurements if is_learnt_from(m))
    for problem, own in times.items():
        finalists = sorted(_us_today(m) for m in own.values() if m.stage == "final")
        if not finalists:
            continue
        brief = [us_of(m) for m in own.values() if m.stage != "final"]
        scale = max(1.0, finalists[-3:][0] / min(brief)) if brief else 1.0
        us = {kernel: _us_today(m) * (1 if m.stage == "final" else scale) for kernel, m in own.items()}
        if not (entries := entries_of(us, problem)):  # the rules have changed, and none runs it any more
            continue
        table = FeatureTable.of(entries, gpu)
        work, fitted = analytic(table, problem, gpu), np.flatnonzero(table.is_fitted)
        if fitted.size:
            kernels = tuple(table.kernels[i] for i in fitted)
            measured, modelled = np.log([us[kernel] for kernel in kernels]), np.log(work["us"][fitted])
            inputs = features(table, work)[fitted]
            yield Rows(problem, kernels, inputs, modelled, measured, math.log(finalists[0]), gpu.name)


def merged(rows: Iterable[Rows]) -> list[Rows]:
    """Each problem of a GPU once, with what all its runs measured: a run's times differ from those of another by a
    factor, as hosts and clocks do, which least squares take out of the logarithms."""
    runs: dict[tuple[str, GemmProblem], list[Rows]] = defaultdict(list)
    for row in rows:
        runs[row.gpu, row.problem].append(row)
    return [_of_runs(own) if len(own) > 1 else own[0] for own in runs.values()]


def _of_runs(runs: Sequence[Rows]) -> Rows:
    """One problem as several runs measured it."""
    index = {kernel: i for i, kernel in enumerate(dict.fromkeys(kernel for run in runs for kernel in run.kernels))}
    kernel = np.array([index[kernel] for run in runs for kernel in run.kernels])
    run = np.repeat(np.arange(len(runs)), [len(own.kernels) for own in runs])
    features, modelled, measured = (
        np.concatenate([getattr(own, name) for own in runs]) for name in ("features", "analytic", "measured")
    )
    kernels, factors = np.zeros(len(index)), np.zeros(len(runs))
    for _ in range(_ROUNDS):
        kernels = np.bincount(kernel, measured - factors[run]) / np.bincount(kernel)
        factors = np.bincount(run, measured - kernels[kernel]) / np.bincount(run)
        factors -= factors.mean()
    first = np.unique(kernel, return_index=True)[1]
    best = min(float(np.mean([own.best for own in runs])), float(kernels.min()))
    return replace(
        runs[0], kernels=tuple(index), features=features[first], analytic=modelled[first], measured=kernels, best=best
    )


def entries_of(kernels: Iterable[SlicedKernel], problem: GemmProblem) -> list[Entry]:
    """Kernels that run a problem, as it is or transposed."""
    sides = ((kernel, config := parse_name(kernel.name), needs_swap(config, problem)) for kernel in kernels)
    return [(kernel, config, swap_ab) for kernel, config, swap_ab in sides if swap_ab is not None]


def is_learnt_from(m: Measurement) -> bool:
    """Whether a measurement is of a kernel that was timed, on a problem that models are for."""
    if m.us is None or m.kernel in BASELINES or m.holds != "time" or SUMMED_INSIDE.search(m.kernel):
        return False
    return (m.problem.batching, m.problem.epilogue) == ("strided", LINEAR) and not is_realigned(m.problem)


def is_realigned(problem: GemmProblem) -> bool:
    """Whether operands are copied into aligned memory, as none is that is aligned as TMA needs it."""
    return any(align < ALIGNMENT for align in (problem.a_align, problem.b_align, problem.c_align))
