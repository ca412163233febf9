"""Sweeps: verify and time all kernels on all shapes, and append the results to a records file.

Two stages keep a sweep short. The screening stage times all kernels briefly. The final stage times the best kernels,
the baselines and the selector's choice thoroughly, so that the loss of the selector is known. Kernels run in separate
processes, one per GPU (:mod:`gemmill.profiler.sweep.measuring`), so that a kernel that faults or hangs costs only its
own record and a restart. The records of each problem are appended as soon as it is done.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gemmill.library.arch import serving
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, measurement_key, read_records
from gemmill.profiler.analysis.appender import Appender, source_commit
from gemmill.profiler.baselines.baseline import BASELINES, THROUGH_TORCH
from gemmill.profiler.baselines.cublas import lacking
from gemmill.profiler.measure.messages import Machine, Options, Report, Unit
from gemmill.profiler.sweep.measuring import GpuPool, LocalGpus
from gemmill.profiler.sweep.units import MAX_PARTIAL_BYTES, likely_first, power_binds, too_large
from gemmill.runtime.compile import pool
from gemmill.runtime.select import gpus
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.selector import Selector
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

DEFAULT_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for the progress of a sweep."""

    compiled: Callable[[pool.Outcome], None] = lambda outcome: None
    """A kernel was compiled, or failed to compile."""
    measured: Callable[[GemmProblem, Sequence[Measurement]], None] = lambda problem, records: None
    """A problem is done, with its new records."""
    untried: Callable[[GemmProblem, int], None] = lambda problem, kernels: None
    """A number of kernels was skipped on a problem because of the budget."""
    left_out: Callable[[str], None] = lambda says: None
    """Kernels or baselines are not measured, with the reason; called once per reason."""


SILENT = Listener()


@dataclass(frozen=True, slots=True)
class Scope:
    """Baselines, pinned kernels and budget of a sweep."""

    baselines: Sequence[str] = tuple(BASELINES)
    """Names of the baselines to compare with."""
    pinned: Callable[[GemmProblem], Mapping[str, SlicedKernel]] = lambda problem: {}
    """Kernels that are always finalists on a problem, in addition to the best and the selected one, by the chooser that
    selects them (``Measurement.chosen``)."""
    budget: float | None = None
    """Seconds to measure, without compilation, on any number of GPUs; None: no limit. Each problem gets a share of the
    time left, and tries kernels in the selector's order."""
    commit: str | None = None
    """Commit of gemmill in the records; None: that of the repository, if any."""


DEFAULT_SCOPE = Scope()


def sweep(
    chosen: Sequence[Unit],
    records: Path,
    *,
    store: Store | None = None,
    jobs: int | None = None,
    options: Options = DEFAULT_OPTIONS,
    scope: Scope = DEFAULT_SCOPE,
    workers: GpuPool | None = None,
    listener: Listener = SILENT,
) -> list[Measurement]:
    """Verify and time kernels and baselines on all shapes, and append the measurements to a file.

    Measurements that the file already contains for this GPU, by cubin and problem, are not repeated. Failed ones are
    repeated, unless the kernel does not support the problem.

    Args:
        chosen: problems, each with kernels that solve it, such as :func:`units` of shapes.
        records: file to append measurements to, as JSON Lines.
        store: store of compiled kernels; None: the default store.
        jobs: number of compile processes; default: one per core.
        options: how candidates are timed.
        scope: baselines, pinned kernels and budget.
        workers: GPUs that measure; None: a process on GPU 0 of this machine.
        listener: callbacks for progress.

    Returns:
        The new measurements, including failed ones.

    Raises:
        RecordError: there is nothing to measure, or the records file cannot be read or written.
        DeviceError: there is no GPU or no PyTorch.
        ToolchainError: the store lacks kernels, and they cannot be compiled.
    """
    pinned = {unit.problem: scope.pinned(unit.problem) for unit in chosen}
    candidates = frozenset(k for unit in chosen for k in (*unit.kernels, *pinned[unit.problem].values()))
    if not candidates:
        raise RecordError("nothing to profile: no kernel matches any shape; check the filter and the shapes")
    past = _Past.read(records, options)
    new: list[Measurement] = []
    with ExitStack() as stack:
        workers = stack.enter_context(workers or LocalGpus())
        machine = workers.start(options)  # before the compilation, which is useless without a GPU
        appender = stack.enter_context(Appender(records))
        kernels = _Kernels.compiled(candidates, machine, workers, store or Store(), jobs, listener)
        if large := sum(too_large(kernel, unit.problem) for unit in chosen for kernel in unit.kernels):
            listener.left_out(
                f"skipped {large} measurements of split-K kernels: partial sums exceed {MAX_PARTIAL_BYTES:,} bytes"
            )
        todo = _due(chosen, kernels, past)
        if options.regime == "sustained":
            todo = _held_by_power(todo, kernels, listener)
        if workers.gpus > 1:  # the longest units first, so that all GPUs finish at about the same time
            todo.sort(key=lambda unit: len(unit.kernels) * unit.problem.flops, reverse=True)
        shares = Shares(scope.budget, workers.gpus)
        handed_out = _handed_out(todo, kernels, past, pinned, shares, tuple(scope.baselines), listener)
        source = scope.commit if scope.commit is not None else source_commit()
        reported: set[str] = set()
        for unit, report, unit_machine in workers.measure(handed_out, kernels.faulty):
            for why, names in _not_compared(unit, unit_machine):
                if why not in reported:
                    listener.left_out(f"not compared with {', '.join(names)}: {why}")
                    reported.add(why)
            shares.give_back(unit.problem)
            if report.untried:
                listener.untried(unit.problem, report.untried)
            measured = measurements(unit, report, kernels.digests, unit_machine, source, pinned[unit.problem])
            appender.append(*measured)
            new += measured
            listener.measured(unit.problem, measured)
    return new


@dataclass(frozen=True, slots=True)
class _Past:
    """The measurements that a records file already contains, by key."""

    timed: frozenset[str]
    failed: frozenset[str]
    sustained: frozenset[GemmProblem]
    """Problems already measured under sustained load."""

    @classmethod
    def read(cls, records: Path, options: Options) -> _Past:
        past = [r for r in (read_records(records) if records.exists() else ()) if r.digest]
        at_length = options.finalists is None
        failed = frozenset(r.key for r in past if r.us is None)
        if options.regime == "sustained":  # the screening is repeated, since it determines the finalists
            return cls(frozenset(), failed, frozenset(r.problem for r in past if r.regime == "sustained"))
        keys = (r.key for r in past if r.us is not None and (r.stage == "final" or not at_length))
        return cls(frozenset(keys), failed, frozenset())


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The kernels of a sweep that its GPUs can run, and their compiled artifacts."""

    gpu: str
    kernels: frozenset[SlicedKernel]
    configs: Mapping[str, GemmConfig]
    """Configs by name."""
    digests: Mapping[str, str]
    """Digests of the compiled cubins, by name."""
    packed: Callable[[str], bytes]
    """Returns the compiled artifact of a kernel, by name."""
    faulty: dict[SlicedKernel, str]
    """Kernels that failed to compile, and why. Kernels that crash are added."""
    selector: Selector
    """Ranks the kernels with the built-in model and measurements, without those of the sweep's file."""

    @classmethod
    def compiled(
        cls,
        kernels: Iterable[SlicedKernel],
        machine: Machine,
        workers: GpuPool,
        store: Store,
        jobs: int | None,
        listener: Listener,
    ) -> _Kernels:
        configs = {name: parse_name(name) for name in sorted({kernel.name for kernel in kernels})}
        targets = serving(machine.capability)
        foreign = Counter(config.arch for config in configs.values() if config.target not in targets)
        for arch, count in foreign.items():
            listener.left_out(f"skipped {count} kernels for {arch}, which {machine.gpu} does not support")
        configs = {name: config for name, config in configs.items() if config.arch not in foreign}
        kernels = frozenset(kernel for kernel in kernels if kernel.name in configs)
        outcomes = workers.compile_many(configs.values(), jobs=jobs, store=store, on_done=listener.compiled)
        artifacts = {outcome.name: outcome.artifact for outcome in outcomes if outcome.artifact is not None}
        errors = {outcome.name: outcome.error for outcome in outcomes if outcome.error is not None}
        return cls(
            machine.gpu,
            kernels,
            configs,
            {name: artifact.digest for name, artifact in artifacts.items()},
            functools.cache(lambda name: artifacts[name].to_bytes()),
            {kernel: f"not compiled: {errors[kernel.name]}" for kernel in kernels if kernel.name in errors},
            Selector(configs, gpus.figures(machine.gpu)),
        )

    def is_due(self, kernel: SlicedKernel, unit: Unit, past: _Past) -> bool:
        """Whether to measure a kernel on the problem of a unit: the GPU supports it, and it is not measured yet."""
        problem, sizes = unit.problem, unit.sizes
        if kernel not in self.kernels or too_large(kernel, problem):
            return False
        if (digest := self.digests.get(kernel.name)) is None:
            return True
        key = measurement_key(digest, problem, self.gpu, sizes=sizes, slices=kernel.slices)
        # Repeat failed measurements, unless the kernel does not support the problem.
        return key not in past.timed and not (
            key in past.failed and needs_swap(self.configs[kernel.name], problem) is None
        )


def _due(chosen: Iterable[Unit], kernels: _Kernels, past: _Past) -> list[Unit]:
    """The units with only the kernels that are due, without empty units."""
    todo = (replace(u, kernels=tuple(k for k in u.kernels if kernels.is_due(k, u, past))) for u in chosen)
    return [unit for unit in todo if unit.kernels and unit.problem not in past.sustained]


def _held_by_power(todo: Iterable[Unit], kernels: _Kernels, listener: Listener) -> list[Unit]:
    """The units that the power limit throttles in a long run; others run at the same clock as in a burst."""
    units = [*todo]
    throttled = [unit for unit in units if power_binds(unit.problem, kernels.selector)]
    if len(throttled) < len(units):
        skipped = len(units) - len(throttled)
        listener.left_out(f"skipped {skipped} problems that the power limit does not throttle, as predicted")
    return throttled


def _handed_out(
    todo: Sequence[Unit],
    kernels: _Kernels,
    past: _Past,
    pinned: Mapping[GemmProblem, Mapping[str, SlicedKernel]],
    shares: Shares,
    baselines: tuple[str, ...],
    listener: Listener,
) -> Iterator[Unit]:
    """The units for the workers, each with its time limit, ranked kernels and their artifacts."""
    for index, unit in enumerate(todo):
        seconds = shares.take(unit.problem, len(todo) - index)
        if seconds is not None and seconds <= 0:
            listener.untried(unit.problem, len(unit.kernels))
            continue
        listed = {*unit.kernels}
        unit = likely_first(replace(unit, seconds=seconds), kernels.selector, pinned[unit.problem].values())
        due = (kernel for kernel in unit.kernels if kernel in listed or kernels.is_due(kernel, unit, past))
        unit = replace(unit, kernels=tuple(due))
        names = {kernel.name for kernel in unit.kernels} & kernels.digests.keys()
        artifacts = {name: kernels.packed(name) for name in sorted(names)}
        yield replace(unit, baselines=baselines, artifacts=artifacts)


class Shares:
    """The time budget, shared evenly among the remaining problems.

    Args:
        seconds: total time; None: no limit.
        workers: number of problems measured in parallel.
    """

    def __init__(self, seconds: float | None, workers: int) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._workers = workers
        self._ends: dict[GemmProblem, float] = {}

    def take(self, problem: GemmProblem, problems: int) -> float | None:
        """Seconds for a problem, the first of ``problems`` remaining ones; at most 0 after the end of the budget."""
        if self._end is None:
            return None
        now = time.monotonic()
        remaining = self._end - now
        reserved = sum(max(0.0, end - now) for end in self._ends.values())
        share = min(remaining, (self._workers * remaining - reserved) / problems)
        self._ends[problem] = now + share
        return share

    def give_back(self, problem: GemmProblem) -> None:
        """Mark a problem as done; the unused part of its share goes to the others."""
        self._ends.pop(problem, None)


def _not_compared(unit: Unit, machine: Machine) -> list[tuple[str, list[str]]]:
    """The baselines that a unit is not compared with, by reason: not available, or the GEMM is not supported."""
    if unit.baselines and (unsupported := lacking(unit.problem)):
        return [(f"they do not support {unsupported}", [*unit.baselines])]
    whys = sorted({*machine.absent.values()})
    return [(why, [name for name, reason in machine.absent.items() if reason == why]) for why in whys]


def measurements(
    unit: Unit,
    report: Report,
    digests: Mapping[str, str],
    machine: Machine,
    commit: str,
    chosen: Mapping[str, SlicedKernel],
) -> list[Measurement]:
    """The records of a report; ``chosen`` are the kernels of each chooser (:attr:`Scope.pinned`)."""
    choosers: dict[SlicedKernel, tuple[str, ...]] = {}
    for who, kernel in chosen.items():
        choosers[kernel] = (*choosers.get(kernel, ()), who)
    timings = {outcome.kernel: outcome.timing for outcome in report.outcomes}
    baseline = next((timings[kernel] for kernel in map(SlicedKernel, THROUGH_TORCH) if kernel in timings), None)
    shared = asdict(report.reading) if report.reading else {}
    alone = any(outcome.reading for outcome in report.outcomes)
    now = datetime.now(UTC)
    return [
        Measurement(
            kernel=outcome.kernel.name,
            slices=outcome.kernel.slices,
            digest=digests.get(outcome.kernel.name, ""),
            problem=unit.problem,
            sizes=unit.sizes,
            gpu=machine.gpu,
            driver=machine.driver,
            cuda=machine.cuda,
            torch=machine.torch,
            gemmill=machine.gemmill,
            commit=commit,
            time=now,
            chosen=choosers.get(outcome.kernel, ()),
            stage=outcome.stage,
            us=timing.median if timing else None,
            low_us=timing.low if timing else None,
            high_us=timing.high if timing else None,
            samples=timing.samples if timing else 0,
            launches=timing.launches if timing else 0,
            regime="sustained" if outcome.reading else "burst",
            baseline_us=baseline.median if baseline and timing and (outcome.reading or not alone) else None,
            verified=outcome.verified,
            error=outcome.error if outcome.error is not None and math.isfinite(outcome.error) else None,
            says=outcome.says,
            **(asdict(outcome.reading) if outcome.reading else shared),
        )
        for outcome in report.outcomes
        for timing in (outcome.timing,)
    ]


def measured_beside(problem: GemmProblem, artifacts: Sequence[Artifact]) -> list[Measurement]:
    """Verify kernels against the float64 reference, and time the correct ones in the same rounds, on GPU 0.

    Runs in a separate process, so that a kernel that faults or hangs becomes a failed measurement.

    Raises:
        DeviceError: there is no GPU or no PyTorch.
    """
    unit = Unit(
        problem,
        tuple(SlicedKernel(artifact.name) for artifact in artifacts),
        artifacts={artifact.name: artifact.to_bytes() for artifact in artifacts},
        baselines=(),
    )
    digests = {artifact.name: artifact.digest for artifact in artifacts}
    with LocalGpus() as gpu:
        machine = gpu.start(Options(finalists=None))
        [measured] = gpu.measure(iter([unit]), {})
    return measurements(unit, measured.report, digests, machine, source_commit(), {})
