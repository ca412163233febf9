"""Sweeps: every kernel verified and timed on every shape, the results appended to a records file.

Two stages keep a sweep short: all kernels are timed briefly, then the best and the baselines, at length, and the kernel
that the selector would take, so that what it loses is known. A sweep with a budget spends it where the choice
is still open. Kernels run in processes of their own (:mod:`gemmill.profiler.sweep.crew`), one a GPU: one that faults
or hangs costs its own record and a restart. Records are appended here, problem by problem, as they are done.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.parts import PARTIAL_BYTES
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.errors import RecordError, UnsupportedProblemError
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.library.records import Measurement, measurement_key, read_records
from gemmill.profiler.analysis.records import Appender, source_commit
from gemmill.profiler.baselines.baseline import BASELINES, THROUGH_TORCH
from gemmill.profiler.measure.worker import Machine, Options, Report, Unit
from gemmill.profiler.sweep.crew import Crew, OneGpu
from gemmill.profiler.sweep.shapes import Shape
from gemmill.runtime.compile import pool
from gemmill.runtime.select import gpus
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.selector import Selector
from gemmill.runtime.storage.store import Store

DEFAULT_OPTIONS = Options()
MAX_PARTIAL_BYTES = 1 << 30
"""Most memory for partial sums: with more, moving them takes longer than the product of the largest matrices."""
TRANSPOSED_ROWS = 1024
"""Up to so many rows, which a tile's columns may fit better than its rows, problems are measured transposed as well."""


def problem_of(config: GemmConfig, shape: Shape) -> GemmProblem:
    """The problem that a kernel solves on packed operands of a shape: K-major and n-major where it takes any.

    The narrow A of a kernel is the transposed B of the call that the shape describes: weights.
    """
    a, b, c, d = config.a, config.b, config.c, config.d
    m, n = (shape.n, shape.m) if upconverts_a(a.dtype, b.dtype) else (shape.m, shape.n)
    packed = GemmProblem.packed(
        (m, n, shape.k, shape.batch),
        (a.dtype, "k" if a.major == "any" else a.major),
        (b.dtype, "k" if b.major == "any" else b.major),
        config.accumulator,
        (c.dtype, "n" if c.major == "any" else c.major) if c else None,
        (d.dtype, "n" if d.major == "any" else d.major),
    )
    return replace(packed, a_scale=a.scale, b_scale=b.scale, promote=config.promote)


NOT_MEASURED = "they are for groups or arrays, or have an expression"
"""Why kernels are not that :func:`is_measured` tells."""


def is_measured(config: GemmConfig) -> bool:
    """Whether a shape is all that a kernel's problem needs: groups, arrays and expressions take more than matrices."""
    return config.scheduler.batching == "strided" and config.epilogue == LINEAR


def units(configs: Iterable[GemmConfig], shapes: Iterable[Shape]) -> list[Unit]:
    """What to measure: for every shape the kernels by the problem they solve on it, in the order of the configs. Those
    are left out that :func:`is_measured` tells.

    Where there are few rows, the kernels follow that solve the problem transposed only
    (:attr:`GemmProblem.transposed`).
    """
    configs = list(filter(is_measured, configs))
    groups: dict[GemmProblem, list[GemmConfig]] = {}
    for shape in shapes:
        own = {config: problem_of(config, shape) for config in configs}
        for config, problem in own.items():
            groups.setdefault(problem, []).append(config)
        for config, problem in own.items() if shape.m <= TRANSPOSED_ROWS else ():
            swapped = problem_of(config, replace(shape, m=shape.n, n=shape.m)).transposed
            if swapped != problem and swapped in groups and needs_swap(config, swapped):
                groups[swapped].append(config)
    return [Unit(problem, tuple(members)) for problem, members in groups.items()]


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


def sweep(
    chosen: Sequence[Unit],
    records: Path,
    *,
    store: Store | None = None,
    jobs: int | None = None,
    options: Options = DEFAULT_OPTIONS,
    budget: float | None = None,
    pinned: Callable[[GemmProblem], Sequence[GemmConfig]] = lambda problem: (),
    baselines: Sequence[str] = tuple(BASELINES),
    commit: str | None = None,
    crew: Crew | None = None,
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
        budget: seconds to spend on measuring, on however many GPUs, compilation apart; None: as long as it takes. Each
            problem gets its share of what is left, and tries kernels in the selector's order.
        pinned: kernels that are to be measured at length on a problem, beside the best and the selected one.
        baselines: names of those to compare with.
        commit: commit of gemmill that the records name; default: the repository's, if this is one.
        crew: who measures; None: a process on GPU 0 of this machine.
        listener: told of progress.

    Returns:
        The new measurements, failed ones among them.

    Raises:
        RecordError: there is nothing to measure, or the records file cannot be read or written.
        DeviceError: there is no GPU or no PyTorch.
        ToolchainError: kernels are missing in the store and cannot be compiled.
    """
    besides = {unit.problem: tuple(pinned(unit.problem)) for unit in chosen}
    configs = list(dict.fromkeys(config for unit in chosen for config in (*unit.configs, *besides[unit.problem])))
    if not configs:
        raise RecordError("nothing to profile: no kernel is left for any shape; check the filter and the shapes")
    store = store or Store()
    at_length = options.finalists is None
    past = [r for r in (read_records(records) if records.exists() else ()) if r.digest]
    known = {r.key for r in past if r.us is not None and (r.stage == "final" or not at_length)}
    failed = {r.key for r in past if r.us is None}
    new: list[Measurement] = []
    with ExitStack() as stack:
        crew = stack.enter_context(crew or OneGpu())
        machine = crew.start(options)  # first: without a GPU nothing need be compiled
        appender = stack.enter_context(Appender(records))
        foreign = Counter(config.arch for config in configs if config.target.capability != machine.capability)
        for arch, count in foreign.items():
            listener.left_out(f"{count} kernels are not measured: they are for {arch}, which {machine.gpu} is not")
        configs = [config for config in configs if config.arch not in foreign]
        compiled = pool.compile_many(configs, jobs=jobs, store=store, on_done=listener.compiled)
        artifacts = {outcome.name: outcome.artifact for outcome in compiled if outcome.artifact}
        digests = {name: artifact.digest for name, artifact in artifacts.items()}
        faulty = {outcome.name: f"not compiled: {outcome.error}" for outcome in compiled if outcome.error}
        source = commit if commit is not None else source_commit()

        def is_due(config: GemmConfig, problem: GemmProblem) -> bool:
            if config.arch in foreign or too_large(config, problem):
                return False
            if (digest := digests.get(kernel_name(config))) is None:
                return True
            key = measurement_key(digest, problem, machine.gpu)
            # What a problem lacks for a kernel it will lack again; what went wrong otherwise may not.
            return key not in known and not (key in failed and needs_swap(config, problem) is None)

        if large := sum(too_large(config, unit.problem) for unit in chosen for config in unit.configs):
            listener.left_out(
                f"{large} measurements of split kernels are left out: partial sums of over {MAX_PARTIAL_BYTES:,} bytes"
            )
        todo = [replace(u, configs=tuple(c for c in u.configs if is_due(c, u.problem))) for u in chosen]
        todo = [unit for unit in todo if unit.configs]
        if crew.gpus > 1:  # what takes longest comes first: the last would keep one GPU busy alone
            todo.sort(key=lambda unit: len(unit.configs) * unit.problem.flops, reverse=True)
        # What the file holds of these problems does not rank them; what ships does.
        selector = Selector({kernel_name(config): config for config in configs}, gpus.figures(machine.gpu))
        packed = functools.cache(lambda name: artifacts[name].to_bytes())
        shares = None if budget is None else Shares(budget)

        def handed_out() -> Iterator[Unit]:
            for done, unit in enumerate(todo):
                if shares is not None:
                    seconds = shares.take(unit.problem, len(todo) - done, crew.gpus)
                    if seconds <= 0:
                        listener.untried(unit.problem, len(unit.configs))
                        continue
                    unit = replace(unit, seconds=seconds)
                listed = {*unit.configs}
                unit = likely_first(unit, selector, besides[unit.problem])
                unit = replace(unit, configs=tuple(c for c in unit.configs if c in listed or is_due(c, unit.problem)))
                names = map(kernel_name, unit.configs)
                own = {name: packed(name) for name in names if name in artifacts}
                yield replace(unit, baselines=tuple(baselines), artifacts=own)

        said: set[str] = set()
        for unit, report, where in crew.measure(handed_out(), faulty):
            for why in sorted({*where.absent.values()} - said):
                names = (name for name, own in where.absent.items() if own == why)
                listener.left_out(f"not compared with {', '.join(names)}: {why}")
                said.add(why)
            if shares is not None:
                shares.give_back(unit.problem)
            if report.untried:
                listener.untried(unit.problem, report.untried)
            measured = measurements(unit.problem, report, digests, where, source)
            appender.append(*measured)
            new += measured
            listener.measured(unit.problem, measured)
    return new


class Shares:
    """Time to measure in, shared out evenly among the problems that are left, several of them at work at once."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._ends: dict[GemmProblem, float] = {}

    def take(self, problem: GemmProblem, problems: int, workers: int) -> float:
        """Seconds for a problem, the first of so many that are left; none or fewer once the time is up."""
        now = time.monotonic()
        left = self._end - now
        taken = sum(max(0.0, end - now) for end in self._ends.values())
        share = min(left, (workers * left - taken) / problems)
        self._ends[problem] = now + share
        return share

    def give_back(self, problem: GemmProblem) -> None:
        """A problem is done: what it did not use of its share is for the others."""
        del self._ends[problem]


def likely_first(unit: Unit, selector: Selector, besides: Sequence[GemmConfig] = ()) -> Unit:
    """The unit with its kernels as the selector ranks them, behind those that are finalists anyhow: the first of that
    rank and those ``besides``, also where the unit lacks them: transposed, of many rows. Kernels that the selector
    passes over come last."""
    try:
        likely = [candidate.name for candidate in selector.candidates(unit.problem, len(selector.configs))]
    except UnsupportedProblemError:
        likely = []
    finalists = dict.fromkeys((*(selector.configs[name] for name in likely[:1]), *besides))
    pinned = tuple(map(kernel_name, finalists))
    places = {name: place for place, name in enumerate(dict.fromkeys((*pinned, *likely)))}
    configs = dict.fromkeys((*unit.configs, *finalists))
    ranked = sorted(configs, key=lambda config: places.get(kernel_name(config), len(places)))
    return replace(unit, configs=tuple(ranked), pinned=pinned)


def too_large(config: GemmConfig, problem: GemmProblem) -> bool:
    """Whether the partial sums of a split kernel take more than :data:`MAX_PARTIAL_BYTES`."""
    if config.scheduler.decomposition != "split":
        return False
    return config.scheduler.splits * problem.batch * problem.m * problem.n * PARTIAL_BYTES > MAX_PARTIAL_BYTES


def measurements(
    problem: GemmProblem, report: Report, digests: dict[str, str], machine: Machine, commit: str
) -> list[Measurement]:
    """The records of a report."""
    timings = {outcome.kernel: outcome.timing for outcome in report.outcomes}
    baseline = next((timings[name] for name in THROUGH_TORCH if name in timings), None)
    state = asdict(report.reading) if report.reading else {}
    now = datetime.now(UTC)
    return [
        Measurement(
            kernel=outcome.kernel,
            digest=digests.get(outcome.kernel, ""),
            problem=problem,
            gpu=machine.gpu,
            driver=machine.driver,
            cuda=machine.cuda,
            torch=machine.torch,
            gemmill=machine.gemmill,
            commit=commit,
            time=now,
            stage=outcome.stage,
            us=timing.median if timing else None,
            low_us=timing.low if timing else None,
            high_us=timing.high if timing else None,
            samples=timing.samples if timing else 0,
            baseline_us=baseline.median if baseline and timing else None,
            verified=outcome.verified,
            error=outcome.error if outcome.error is not None and math.isfinite(outcome.error) else None,
            says=outcome.says,
            **state,
        )
        for outcome in report.outcomes
        for timing in (outcome.timing,)
    ]
