"""Sweeps: every kernel verified and timed on every shape, the results appended to a records file.

Two stages keep a sweep short: all kernels are timed briefly, then the best and the baselines, at length, and the kernel
that the selector would take, so that what it loses is known. A sweep with a budget spends it where the choice
is still open. Kernels run in processes of their own (:mod:`gemmill.profiler.sweep.measuring`), one a GPU: one that
faults or hangs costs its own record and a restart. Records are appended here, problem by problem, as they are done.
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
    """Hears of a sweep's progress."""

    compiled: Callable[[pool.Outcome], None] = lambda outcome: None
    """A kernel is compiled, or was refused."""
    measured: Callable[[GemmProblem, Sequence[Measurement]], None] = lambda problem, records: None
    """A problem is done; these are its new records."""
    untried: Callable[[GemmProblem, int], None] = lambda problem, kernels: None
    """There was no time for so many kernels on a problem."""
    left_out: Callable[[str], None] = lambda says: None
    """Kernels, or baselines, are not measured, and why; said once."""


SILENT = Listener()


@dataclass(frozen=True, slots=True)
class Scope:
    """What a sweep measures besides the kernels that it is for, and for how long."""

    baselines: Sequence[str] = tuple(BASELINES)
    """Names of those to compare with."""
    pinned: Callable[[GemmProblem], Mapping[str, SlicedKernel]] = lambda problem: {}
    """Kernels that are to be measured at length on a problem, beside the best and the selected one, by what would take
    them: ``Measurement.chosen``."""
    budget: float | None = None
    """Seconds to spend on measuring, on however many GPUs, compilation apart; None: as long as it takes. Each problem
    gets its share of what is left, and tries kernels in the selector's order."""
    commit: str | None = None
    """Commit of gemmill that the records name; None: the repository's, if this is one."""


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
    """Verify and time kernels on every shape, with the baselines beside them, and append what comes out to a file.

    What the file holds already for this GPU, by cubin and problem, is not measured again; what failed is tried again,
    unless the kernel does not serve the problem.

    Args:
        chosen: problems and kernels that solve them, such as :func:`units` of shapes.
        records: file that measurements are appended to, one JSON line each.
        store: where kernels are kept; None means the default store.
        jobs: processes that compile; default: one a core.
        options: how thoroughly to measure.
        scope: what is measured besides, and for how long.
        workers: what measures; None: a process on GPU 0 of this machine.
        listener: hears of progress.

    Returns:
        The new measurements, failed ones among them.

    Raises:
        RecordError: there is nothing to measure, or the records file cannot be read or written.
        DeviceError: there is no GPU or no PyTorch.
        ToolchainError: kernels are missing in the store and cannot be compiled.
    """
    besides = {unit.problem: scope.pinned(unit.problem) for unit in chosen}
    wanted = frozenset(k for unit in chosen for k in (*unit.kernels, *besides[unit.problem].values()))
    if not wanted:
        raise RecordError("nothing to profile: no kernel is left for any shape; check the filter and the shapes")
    past = _Past.read(records, options)
    new: list[Measurement] = []
    with ExitStack() as stack:
        workers = stack.enter_context(workers or LocalGpus())
        machine = workers.start(options)  # first: without a GPU nothing need be compiled
        appender = stack.enter_context(Appender(records))
        kernels = _Kernels.compiled(wanted, machine, workers, store or Store(), jobs, listener)
        if large := sum(too_large(kernel, unit.problem) for unit in chosen for kernel in unit.kernels):
            listener.left_out(
                f"{large} measurements of split kernels are left out: partial sums of over {MAX_PARTIAL_BYTES:,} bytes"
            )
        todo = _due(chosen, kernels, past)
        if options.regime == "sustained":
            todo = _held_by_power(todo, kernels, listener)
        if workers.gpus > 1:  # what takes longest comes first: the last would keep one GPU busy alone
            todo.sort(key=lambda unit: len(unit.kernels) * unit.problem.flops, reverse=True)
        shares = Shares(scope.budget, workers.gpus)
        handed_out = _handed_out(todo, kernels, past, besides, shares, tuple(scope.baselines), listener)
        source = scope.commit if scope.commit is not None else source_commit()
        reported: set[str] = set()
        for unit, report, where in workers.measure(handed_out, kernels.faulty):
            for why, names in _not_compared(unit, where):
                if why not in reported:
                    listener.left_out(f"not compared with {', '.join(names)}: {why}")
                    reported.add(why)
            shares.give_back(unit.problem)
            if report.untried:
                listener.untried(unit.problem, report.untried)
            measured = measurements(unit, report, kernels.digests, where, source, besides[unit.problem])
            appender.append(*measured)
            new += measured
            listener.measured(unit.problem, measured)
    return new


@dataclass(frozen=True, slots=True)
class _Past:
    """What a records file holds already, by the keys of its measurements."""

    known: frozenset[str]
    failed: frozenset[str]
    sustained: frozenset[GemmProblem]
    """Problems measured under sustained load, by whichever kernels got so far."""

    @classmethod
    def read(cls, records: Path, options: Options) -> _Past:
        past = [r for r in (read_records(records) if records.exists() else ()) if r.digest]
        at_length = options.finalists is None
        failed = frozenset(r.key for r in past if r.us is None)
        if options.regime == "sustained":  # a brief look says which kernels get so far, and is taken again
            return cls(frozenset(), failed, frozenset(r.problem for r in past if r.regime == "sustained"))
        known = (r.key for r in past if r.us is not None and (r.stage == "final" or not at_length))
        return cls(frozenset(known), failed, frozenset())


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The kernels of a sweep that its GPUs can run."""

    gpu: str
    kernels: frozenset[SlicedKernel]
    configs: Mapping[str, GemmConfig]
    """By name."""
    digests: Mapping[str, str]
    """Of the cubins of those that are compiled, by name."""
    packed: Callable[[str], bytes]
    """Gives the artifact of one that is."""
    faulty: dict[SlicedKernel, str]
    """Those that could not be compiled, and why. Those that crash are added."""
    selector: Selector
    """What ranks them: by what ships; what the sweep's file holds does not."""

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
            listener.left_out(f"{count} kernels are not measured: they are for {arch}, which {machine.gpu} is not")
        configs = {name: config for name, config in configs.items() if config.arch not in foreign}
        kernels = frozenset(kernel for kernel in kernels if kernel.name in configs)
        made = workers.compile_many(configs.values(), jobs=jobs, store=store, on_done=listener.compiled)
        artifacts = {outcome.name: outcome.artifact for outcome in made if outcome.artifact is not None}
        errors = {outcome.name: outcome.error for outcome in made if outcome.error is not None}
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
        """Whether a kernel is to be measured on a unit's problem: the GPU can run it, and it has not been."""
        problem, sizes = unit.problem, unit.sizes
        if kernel not in self.kernels or too_large(kernel, problem):
            return False
        if (digest := self.digests.get(kernel.name)) is None:
            return True
        key = measurement_key(digest, problem, self.gpu, sizes=sizes, slices=kernel.slices)
        # What a problem lacks for a kernel it will lack again; what went wrong otherwise may not.
        return key not in past.known and not (
            key in past.failed and needs_swap(self.configs[kernel.name], problem) is None
        )


def _due(chosen: Iterable[Unit], kernels: _Kernels, past: _Past) -> list[Unit]:
    """The units with the kernels that are due; those without any are left out."""
    todo = (replace(u, kernels=tuple(k for k in u.kernels if kernels.is_due(k, u, past))) for u in chosen)
    return [unit for unit in todo if unit.kernels and unit.problem not in past.sustained]


def _held_by_power(todo: Iterable[Unit], kernels: _Kernels, listener: Listener) -> list[Unit]:
    """The units in which a long run is held by the power limit: others run as in bursts."""
    units = [*todo]
    held = [unit for unit in units if power_binds(unit.problem, kernels.selector)]
    if len(held) < len(units):
        listener.left_out(f"{len(units) - len(held)} problems are left out: power does not hold them, by the model")
    return held


def _handed_out(
    todo: Sequence[Unit],
    kernels: _Kernels,
    past: _Past,
    besides: Mapping[GemmProblem, Mapping[str, SlicedKernel]],
    shares: Shares,
    baselines: tuple[str, ...],
    listener: Listener,
) -> Iterator[Unit]:
    """The units as workers take them, each with its time, its kernels ranked, and what they are compiled to."""
    for done, unit in enumerate(todo):
        seconds = shares.take(unit.problem, len(todo) - done)
        if seconds is not None and seconds <= 0:
            listener.untried(unit.problem, len(unit.kernels))
            continue
        listed = {*unit.kernels}
        unit = likely_first(replace(unit, seconds=seconds), kernels.selector, besides[unit.problem].values())
        due = (kernel for kernel in unit.kernels if kernel in listed or kernels.is_due(kernel, unit, past))
        unit = replace(unit, kernels=tuple(due))
        names = {kernel.name for kernel in unit.kernels} & kernels.digests.keys()
        own = {name: kernels.packed(name) for name in sorted(names)}
        yield replace(unit, baselines=baselines, artifacts=own)


class Shares:
    """Time to measure in, shared out evenly among the problems that are left, as many at work at once as there are
    workers; ``seconds`` is None where there is no end to it."""

    def __init__(self, seconds: float | None, workers: int) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._workers = workers
        self._ends: dict[GemmProblem, float] = {}

    def take(self, problem: GemmProblem, problems: int) -> float | None:
        """Seconds for a problem, the first of so many that are left; none or fewer once the time is up."""
        if self._end is None:
            return None
        now = time.monotonic()
        left = self._end - now
        taken = sum(max(0.0, end - now) for end in self._ends.values())
        share = min(left, (self._workers * left - taken) / problems)
        self._ends[problem] = now + share
        return share

    def give_back(self, problem: GemmProblem) -> None:
        """A problem is done: what it did not use of its share is for the others."""
        self._ends.pop(problem, None)


def _not_compared(unit: Unit, machine: Machine) -> list[tuple[str, list[str]]]:
    """Why a unit is not compared with some baselines, and with which: they cannot be had, or have no such GEMM."""
    if unit.baselines and (what := lacking(unit.problem)):
        return [(f"they have no GEMM of {what}", [*unit.baselines])]
    whys = sorted({*machine.absent.values()})
    return [(why, [name for name, own in machine.absent.items() if own == why]) for why in whys]


def measurements(
    unit: Unit,
    report: Report,
    digests: Mapping[str, str],
    machine: Machine,
    commit: str,
    chosen: Mapping[str, SlicedKernel],
) -> list[Measurement]:
    """The records of a report."""
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
    """Verify kernels against the float64 reference and time those that are right in the same rounds, on GPU 0.

    In a process of its own, as sweeps do: a kernel that faults or hangs is a measurement that says so.

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
        [done] = gpu.measure(iter([unit]), {})
    return measurements(unit, done.report, digests, machine, source_commit(), {})
