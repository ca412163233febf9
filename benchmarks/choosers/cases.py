"""The cases of the benchmark of choosing: problems, and the kernels that were measured on them side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path
from typing import NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.parquet import problems_of
from gemmill.library.problem import GemmProblem, Regime
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.analysis.populations import present_config
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.training.rows import COMPILED_IN, SUMMED_INSIDE, is_realigned, side_by_side
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.model_file import FOLDER, GpuModel, content_of, model_of

RESULTS = Path(__file__).resolve().parents[2] / "profiler" / "results"
BURSTS = ("h200-others", "h200-layouts", "h200-drawn", "h100-others", "h100-drawn")
SUSTAINED = ("sustained-20261127", "sustained-20261128", "sustained-20261128b")
RECORDS = tuple(RESULTS / f"{name}.parquet" for name in (*BURSTS, *SUSTAINED))
"""The files that are scored unless others are named. The two largest files hold only problems that the models were
fitted to."""
ONLY_TESTS = ("capped-20261128T062600Z",)
"""Sweeps at the power limit to which no energy term was fitted."""
FEWEST = 6
"""Least number of kernels of a case."""
DECODE = 64
"""Most rows of a decode problem."""
_DRAWN = re.compile("drawn|draws|mixed")
"""Names of sweeps of random problems."""
WEIGHTS = {"tile M": 1.0, "tile N": 1.0, "slices": 1.0, "cluster M": 0.5, "cluster N": 0.5, "K": 0.25, "stages": 0.25}
"""What one power of two of difference in each property adds to the distance of two kernels."""


class Kernel(NamedTuple):
    """A candidate of a case. Tile and cluster are in terms of the problem, also if the kernel runs its transpose."""

    sliced: SlicedKernel
    config: GemmConfig
    tile: tuple[int, int, int]
    """M, N and K of a CTA's tile."""
    cluster: tuple[int, int]
    """CTAs of a cluster along M and N."""
    stages: int
    slices: int
    """In how many parts different CTAs sum K; 1 for stream-K, whose CTAs share it unevenly."""

    @property
    def properties(self) -> KernelProperties:
        """The kernel's own properties."""
        return KernelProperties(self.tile, self.cluster, self.stages, self.slices)

    @classmethod
    def of(cls, sliced: SlicedKernel, config: GemmConfig, *, swapped: bool) -> Kernel:
        """The candidate of a kernel that runs a problem or, swapped, its transpose."""
        tile, cluster = (config.tile.m, config.tile.n), (config.cluster.m, config.cluster.n)
        if swapped:
            tile, cluster = tile[::-1], cluster[::-1]
        decomposition = decomposition_of(config)
        slices = config.scheduler.splits * (1 if decomposition.is_serial else sliced.slices)
        return cls(sliced, config, (*tile, config.tile.k), cluster, config.stages, slices)


@dataclass(frozen=True)
class KernelProperties:
    """The properties of the kernel that a chooser returns, in terms of the problem. The benchmark scores the nearest
    candidate (:func:`nearest`)."""

    tile: tuple[int, int, int]
    """M, N and K of a CTA's tile."""
    cluster: tuple[int, int] = (1, 1)
    """CTAs of a cluster along M and N."""
    stages: int = 4
    slices: int = 1
    """In how many parts CTAs sum K."""


@dataclass(frozen=True)
class Case:
    """What a chooser is given: a problem, the conditions, and the kernels that were measured, without their times."""

    problem: GemmProblem
    gpu: str
    """Name of the GPU as the driver reports it."""
    regime: Regime
    kernels: Mapping[str, Kernel]
    """The candidates by name; the name of a split-K kernel ends in `` in 4 slices``."""


Answer = str | KernelProperties | Sequence[str | KernelProperties] | None
"""The kernel of a chooser, or several, the best first; None: it does not support the problem."""
Chooser = Callable[[Case], Answer]


@dataclass(frozen=True)
class Measured:
    """A case with its times."""

    case: Case
    us: Mapping[str, float]
    """Microseconds by the name of the candidate."""
    run: str
    """The sweep."""
    is_fitted: bool
    """Whether gemmill's model was fitted to measurements of the problem, or ships some."""
    has_fitted_weights: bool
    """Whether it was fitted to a problem with the same N, K and type."""

    @property
    def type(self) -> str:
        """The type of the problem; see :func:`type_of`."""
        return type_of(self.case.problem)

    @property
    def fastest(self) -> str:
        """The fastest candidate."""
        return min(self.us, key=lambda name: (self.us[name], name))

    def regret(self, name: str) -> float:
        """The time of a candidate divided by the least, less 1."""
        return self.us[name] / self.us[self.fastest] - 1

    @property
    def kind(self) -> str:
        """The kind of the problem: the first of these that applies."""
        problem = self.case.problem
        if is_realigned(problem):
            return "unaligned"
        if problem.batch > 1:
            return "batched"
        if _DRAWN.search(self.run):
            return "drawn"
        return "decode" if problem.m <= DECODE else "prefill"


def type_of(problem: GemmProblem) -> str:
    """Type of A and B, with the suffix ``-scaled`` for block scales."""
    return problem.a_dtype if problem.a_scale == "none" else f"{problem.a_dtype}-scaled"


def distance(kernel: Kernel, wanted: KernelProperties) -> float:
    """How unlike a kernel is to the wanted one: the sum over the properties of :data:`WEIGHTS` of the weight times the
    difference in powers of two. Stream-K counts as one power of two in slices."""

    def values(of: Kernel | KernelProperties) -> tuple[int, ...]:
        return *of.tile[:2], of.slices, *of.cluster, of.tile[2], of.stages

    pairs = zip(WEIGHTS.values(), values(kernel), values(wanted), strict=True)
    shares = WEIGHTS["slices"] * decomposition_of(kernel.config).has_shares
    return shares + sum(weight * abs(log2(one / other)) for weight, one, other in pairs)


def nearest(wanted: KernelProperties, kernels: Mapping[str, Kernel]) -> tuple[str, float]:
    """The candidate that is most like the wanted kernel, and its distance; of several, the first by name."""
    return min(((name, distance(kernel, wanted)) for name, kernel in kernels.items()), key=lambda x: (x[1], x[0]))


class Cases(NamedTuple):
    """The cases of some records."""

    measured: list[Measured]
    too_few: int
    """Number of problems left out, because no run measured enough of today's kernels on them."""


def cases_of(records: Iterable[Path], regimes: Collection[str]) -> Cases:
    """The cases in files of measurements: of each problem, GPU and regime, the run with the most kernels, and of
    several such runs the last. Times of two runs are not comparable, so that a case is of one.

    Left out are baselines, batches of other forms, epilogues, kernels that no longer exist, and times that no longer
    hold. RecordError if a file cannot be read.
    """
    runs: dict[tuple[GemmProblem, str, Regime], dict[str, dict[SlicedKernel, Measurement]]] = defaultdict(dict)
    for m in (m for path in records for m in read_records(path) if m.regime in regimes and _is_scored(m)):
        runs[m.problem, m.gpu, m.regime].setdefault(m.run, {})[m.sliced] = m
    measured = []
    for (problem, gpu, regime), by_run in runs.items():
        timed = ((run, by_kernel, side_by_side(by_kernel)) for run, by_kernel in by_run.items())
        candidates = [(_kernels(by_kernel, problem), run, us) for run, by_kernel, us in timed if us]
        kernels, run, us = max(candidates, key=lambda x: (len(x[0]), x[1]), default=({}, "", {}))
        if len(kernels) >= FEWEST:
            case = Case(problem, gpu, regime, kernels)
            times = {name: us[kernel.sliced] for name, kernel in kernels.items()}
            measured.append(Measured(case, times, run, *_fitted(gpu).has(problem)))
    return Cases(measured, len(runs) - len(measured))


def _is_scored(m: Measurement) -> bool:
    """Whether a measurement has a time that still holds, of a kernel, on a problem that choosers are scored on."""
    formats = m.problem.batching, m.problem.epilogue, m.problem.symmetry
    return (
        m.us is not None
        and m.holds == "time"
        and m.kernel not in BASELINES
        and not (SUMMED_INSIDE.search(m.kernel) or COMPILED_IN.search(m.kernel))
        and formats == ("strided", LINEAR, "general")
        and m.problem.a_dtype == m.problem.b_dtype
    )


def _kernels(sliced: Iterable[SlicedKernel], problem: GemmProblem) -> dict[str, Kernel]:
    """The candidates among kernels: those that exist today, and support the problem or its transpose."""
    kernels = {}
    for kernel in sliced:
        if config := present_config(kernel.name):
            swapped = needs_swap(config, problem)
            if swapped is not None:
                kernels[str(kernel)] = Kernel.of(kernel, config, swapped=swapped)
    return kernels


class Fitted(NamedTuple):
    """What the model of a GPU was fitted to."""

    problems: frozenset[GemmProblem]
    weights: frozenset[tuple[int, int, str]]
    """N, K and the type of A of these problems."""
    model: GpuModel | None

    def has(self, problem: GemmProblem) -> tuple[bool, bool]:
        """Whether the model was fitted to a problem or ships measurements of it, and whether to its weights."""
        is_fitted = problem in self.problems or bool(self.model and self.model.times(problem))
        return is_fitted, is_fitted or (problem.n, problem.k, problem.a_dtype) in self.weights


@cache
def _fitted(gpu: str) -> Fitted:
    """What the shipped model of a GPU was fitted to, its energy term too."""
    name = figures(gpu).name
    content = content_of(name, FOLDER)
    if content is None:
        return Fitted(frozenset(), frozenset(), None)
    runs = {*content["fitted to"]}
    problems = frozenset(
        problem
        for path in sorted(RESULTS.glob("*.parquet"))
        for run, of_run in problems_of(path).items()
        if run in runs or (path.name.startswith("sustained-") and run not in ONLY_TESTS)
        for problem in of_run
    )
    weights = frozenset((problem.n, problem.k, problem.a_dtype) for problem in problems)
    return Fitted(problems, weights, model_of(name))
