"""Who measures the units of a sweep: a process on one GPU of this machine, or the workers of a cluster.

Those are in :mod:`gemmill.profiler.sweep.cluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.profiler.measure.messages import Machine, Options, Outcome, Report, Unit
from gemmill.profiler.sweep.process import WorkerError, WorkerProcess
from gemmill.runtime.compile import pool
from gemmill.runtime.storage.store import Store


class Done(NamedTuple):
    """A unit that was measured, what came out, and where."""

    unit: Unit
    report: Report
    machine: Machine


class WorkerPool(Protocol):
    """Measures units, on one GPU or several of one model. A context manager: its processes end with the block."""

    @property
    def gpus(self) -> int:
        """Units that are measured at the same time."""

    def start(self, options: Options) -> Machine:
        """Get ready to measure; what the GPUs have in common.

        Raises:
            DeviceError: nothing can be measured.
        """

    def compile_many(
        self,
        configs: Iterable[GemmConfig],
        *,
        jobs: int | None,
        store: Store,
        on_done: Callable[[pool.Outcome], None] | None,
    ) -> list[pool.Outcome]:
        """As :func:`~gemmill.runtime.compile.pool.compile_many`, wherever kernels are compiled."""

    def measure(self, units: Iterator[Unit], faulty: dict[str, str]) -> Iterator[Done]:
        """Measure units, each taken only when a GPU is free for it; they come back as they are done.

        Args:
            units: what to measure.
            faulty: kernels that are not run, by name, and why. Those that crash are added.

        Raises:
            DeviceError: no measuring process can be started any more.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OneGpu:
    """GPU 0 of this machine."""

    gpus = 1
    compile_many = staticmethod(pool.compile_many)

    def __init__(self) -> None:
        self._worker: WorkerProcess | None = None

    def start(self, options: Options) -> Machine:
        """Start the process that measures."""
        self._worker = WorkerProcess(options)
        return self._worker.start()

    def measure(self, units: Iterator[Unit], faulty: dict[str, str]) -> Iterator[Done]:
        """Measure units, one after the other."""
        assert self._worker is not None
        for unit in units:
            report = measure(self._worker, unit, faulty)
            yield Done(unit, report, self._worker.machine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            self._worker.stop()


def measure(worker: WorkerProcess, unit: Unit, faulty: dict[str, str]) -> Report:
    """Measure a unit without the kernels and baselines that are known to be ``faulty``; those that crash are added, and
    what they took of its seconds is gone."""
    begin = time.monotonic()
    while True:
        failed = tuple(Outcome(n, "failed", says=faulty[n]) for n in unit.candidates if n in faulty)
        baselines = tuple(name for name in unit.baselines if name not in faulty)
        sound = tuple(config for config in unit.configs if kernel_name(config) not in faulty)
        edited = tuple(name for name in unit.edited if name not in faulty)
        if not sound and not edited:
            return Report(failed, None)
        left = None if unit.seconds is None else max(0.0, unit.seconds - (time.monotonic() - begin))
        try:
            sound_unit = replace(unit, configs=sound, edited=edited, baselines=baselines, seconds=left)
            report = worker.measure(sound_unit)
        except WorkerError as error:
            if error.kernel in unit.candidates:
                faulty[error.kernel] = f"crashed on {unit.problem}: {error}"
                continue
            # No kernel was running: the operands may be too large for the GPU.
            outcomes = tuple(Outcome(name, "failed", says=str(error)) for name in sound_unit.kernels)
            return Report(failed + outcomes, None)
        return replace(report, outcomes=failed + report.outcomes)
