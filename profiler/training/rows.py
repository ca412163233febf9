"""Training data from measurements: the kernels of each problem of a run, with model features and measured times."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from gemmill.runtime.select.cost.energy import power_us
from gemmill.runtime.select.cost.model import analytic, features
from gemmill.runtime.select.cost.table import Entry, FeatureTable
from gemmill.runtime.select.kernels.faults import needs_swap

COMPILED_IN, SUMMED_INSIDE = re.compile(r"_k\d+split_"), re.compile(r"_k\d+fused_")
"""Names of split-K kernels in old records, from before the number of slices was a kernel argument: those with a
compiled-in number, and those that reduced without a second kernel. The latter no longer exist and are not used for
training."""
OF_ARGUMENT = 1.017
"""Time of a split-K kernel relative to one with a compiled-in number of slices: the median of 27 pairs."""
PAUSED = 4
"""First version of the method of measurement (``records.METHOD``) whose replays run at full clock."""
SLOWED = 0.7
"""Least ratio of the time under the power limit to a measured time from which the limit lowered the clock of replays
without pauses."""
_ROUNDS = 6
"""Iterations of the least squares fit of times by kernel and run."""
SHARPNESS = 5.0
"""How the weight of a kernel decreases with its time: a kernel e^(1/5) times as slow as the best weighs 1/e of it."""


@dataclass(frozen=True)
class Rows:
    """The kernels of a problem."""

    problem: GemmProblem
    kernels: tuple[SlicedKernel, ...]
    features: Any
    """Inputs of the network, (kernels, inputs), in the order of ``model_file.INPUTS``."""
    analytic: Any
    """Logarithms of the analytic model's times."""
    measured: Any
    """Logarithms of the measured times."""
    best: float
    """Logarithm of the least final time."""
    gpu: str
    """Full name of the GPU."""

    @property
    def weights(self) -> Any:
        """Weight of each kernel; the sum is 1."""
        weights = np.exp(-SHARPNESS * (self.measured - self.measured.min()))
        return weights / weights.sum()


def us_of(measurement: Measurement) -> float:
    """The time of a measurement that has one, in microseconds."""
    assert measurement.us is not None
    return measurement.us


def _us_today(measurement: Measurement) -> float:
    """The time of a kernel, corrected for compiled-in numbers of slices."""
    return us_of(measurement) * (OF_ARGUMENT if COMPILED_IN.search(measurement.kernel) else 1)


def of_problem(measurements: Iterable[Measurement]) -> dict[GemmProblem, dict[SlicedKernel, Measurement]]:
    """Measurements by problem and kernel; of several for one kernel, the last."""
    times: dict[GemmProblem, dict[SlicedKernel, Measurement]] = defaultdict(dict)
    for m in measurements:
        times[m.problem][m.sliced] = m
    return times


def rows_of(measurements: Iterable[Measurement], gpu: Gpu) -> Iterator[Rows]:
    """The kernels of each problem of one run that the network is trained on; times of different runs are not
    comparable. Excluded are problems whose operands are copied first, and measurements that are no longer valid.
    """
    times = of_problem(m for m in measurements if is_learnt_from(m))
    for problem, by_kernel in times.items():
        if not (us := side_by_side(by_kernel)):
            continue
        if not (entries := entries_of(us, problem)):  # no kernel supports the problem any more
            continue
        table = FeatureTable.of(entries, gpu)
        work, fitted = analytic(table, problem, gpu), np.flatnonzero(table.is_fitted)
        if fitted.size:
            kernels = tuple(table.kernels[i] for i in fitted)
            measured, modelled = np.log([us[kernel] for kernel in kernels]), np.log(work["us"][fitted])
            inputs = features(table, work)[fitted]
            yield Rows(problem, kernels, inputs, modelled, measured, math.log(min(us.values())), gpu.name)


def by_clock(measurements: Iterable[Measurement], gpu: Gpu) -> tuple[list[Measurement], list[Measurement]]:
    """Divide measurements in bursts into those at full clock and those whose clock the power limit may have lowered:
    without pauses, on problems that need much power."""
    full: list[Measurement] = []
    lower: list[Measurement] = []
    for problem, by_kernel in of_problem(measurements).items():
        least = min((us_of(m) for m in by_kernel.values() if m.us), default=math.inf)
        is_slowed = power_us(problem.typical(), gpu) >= SLOWED * least
        for m in by_kernel.values():
            (lower if is_slowed and m.method < PAUSED else full).append(m)
    return full, lower


def side_by_side(by_kernel: Mapping[SlicedKernel, Measurement]) -> dict[SlicedKernel, float]:
    """Comparable microseconds of the kernels of a problem in one run; empty without finalists.

    Screening times were measured at other clocks. They are scaled so that none appears faster than the finalists,
    except for the slowest two, which may have been pinned.
    """
    finalists = sorted(_us_today(m) for m in by_kernel.values() if m.stage == "final")
    if not finalists:
        return {}
    brief = [us_of(m) for m in by_kernel.values() if m.stage != "final"]
    scale = max(1.0, finalists[-3:][0] / min(brief)) if brief else 1.0
    return {kernel: _us_today(m) * (1 if m.stage == "final" else scale) for kernel, m in by_kernel.items()}


def merged(rows: Iterable[Rows]) -> list[Rows]:
    """Merge all runs of each problem on a GPU. Times of two runs differ by a factor, because of hosts and clocks; a
    least squares fit of the logarithms removes it."""
    runs: dict[tuple[str, GemmProblem], list[Rows]] = defaultdict(list)
    for row in rows:
        runs[row.gpu, row.problem].append(row)
    return [_of_runs(group) if len(group) > 1 else group[0] for group in runs.values()]


def _of_runs(runs: Sequence[Rows]) -> Rows:
    """Merge several runs of one problem."""
    index = {kernel: i for i, kernel in enumerate(dict.fromkeys(kernel for run in runs for kernel in run.kernels))}
    kernel = np.array([index[kernel] for run in runs for kernel in run.kernels])
    run = np.repeat(np.arange(len(runs)), [len(rows.kernels) for rows in runs])
    features, modelled, measured = (
        np.concatenate([getattr(rows, name) for rows in runs]) for name in ("features", "analytic", "measured")
    )
    kernels, factors = np.zeros(len(index)), np.zeros(len(runs))
    for _ in range(_ROUNDS):
        kernels = np.bincount(kernel, measured - factors[run]) / np.bincount(kernel)
        factors = np.bincount(run, measured - kernels[kernel]) / np.bincount(run)
        factors -= factors.mean()
    first = np.unique(kernel, return_index=True)[1]
    best = min(float(np.mean([rows.best for rows in runs])), float(kernels.min()))
    return replace(
        runs[0], kernels=tuple(index), features=features[first], analytic=modelled[first], measured=kernels, best=best
    )


def entries_of(kernels: Iterable[SlicedKernel], problem: GemmProblem) -> list[Entry]:
    """The kernels that support a problem or its transpose."""
    sides = ((kernel, config := parse_name(kernel.name), needs_swap(config, problem)) for kernel in kernels)
    return [(kernel, config, swap_ab) for kernel, config, swap_ab in sides if swap_ab is not None]


def is_learnt_from(m: Measurement) -> bool:
    """Whether a measurement has a time, is of a kernel, and is of a problem that models are trained on."""
    if m.us is None or m.kernel in BASELINES or m.holds != "time" or SUMMED_INSIDE.search(m.kernel):
        return False
    formats = m.problem.batching, m.problem.epilogue, m.problem.symmetry
    return formats == ("strided", LINEAR, "general") and not is_realigned(m.problem)


def is_realigned(problem: GemmProblem) -> bool:
    """Whether gemmill copies operands into aligned memory, since they are not aligned for TMA."""
    return any(align < ALIGNMENT for align in (problem.a_align, problem.b_align, problem.c_align))
