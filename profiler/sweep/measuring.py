"""Measure the units of a sweep, with a process for each GPU of this machine.

The workers of a cluster, which have the same interface, are in :mod:`gemmill.profiler.sweep.cluster`.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import DeviceError, InstallationError
from gemmill.profiler.measure.messages import Fault, Machine, Options, Outcome, Refusal, Report, Running, Unit
from gemmill.runtime import driver
from gemmill.runtime.compile import pool
from gemmill.runtime.storage.store import Store
from gemmill.runtime.workers import Worker, WorkerError

START_SECONDS = 120.0
"""Time limit for the start of a process; importing PyTorch takes a tenth of it."""
SILENCE_SECONDS = 120.0
"""Time limit for a kernel."""


class MeasuringProcess:
    """A measuring process, which restarts after a crash. A context manager: the process ends with the block.

    Args:
        options: how candidates are timed.
        silence_seconds: time limit for a kernel.
        module: the module whose ``serve`` is the body of the process.
        gpu: the only visible GPU, as in ``CUDA_VISIBLE_DEVICES``; by default, all that the current process sees.
    """

    def __init__(
        self,
        options: Options,
        silence_seconds: float = SILENCE_SECONDS,
        module: str = "gemmill.profiler.measure.worker",
        gpu: str | None = None,
    ) -> None:
        self.machine: Machine
        """The GPU of the process; set by :meth:`start`."""
        self._options = options
        self._silence_seconds = silence_seconds
        self._module, self._gpu = module, gpu
        self._is_closed = False
        self._worker: Worker | None = None

    def start(self) -> Machine:
        """Start the process.

        Raises:
            DeviceError: the process cannot start or cannot measure on this machine.
        """
        environment = None if self._gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": self._gpu}
        try:
            self._worker = Worker(self._module, environment=environment)
            if self._is_closed:
                self._worker.end()
            answer = self._answer(self._worker, self._options, START_SECONDS)
        except (InstallationError, WorkerError) as error:
            raise DeviceError(f"cannot start the measuring process: {error}") from None
        if isinstance(answer, Machine):
            self.machine = answer
            return answer
        self.stop()
        raise DeviceError(answer.says if isinstance(answer, Refusal | Fault) else f"unexpected answer: {answer}")

    def measure(self, unit: Unit) -> Report:
        """Measure a unit in the process.

        Raises:
            WorkerError: the process died, hangs, or cannot continue; ``item`` is the kernel that was running, or empty.
                The next call starts a new process.
            DeviceError: a new process cannot be started.
        """
        if self._worker is None or not self._worker.is_alive:
            self.start()
        assert self._worker is not None
        answer = self._answer(self._worker, unit, self._silence_seconds)
        if isinstance(answer, Report):
            return answer
        self.stop()
        says = answer.says if isinstance(answer, Refusal | Fault) else f"unexpected answer: {answer}"
        raise WorkerError(self._worker.item, says)

    def stop(self) -> None:
        """Kill the process."""
        if self._worker is not None:
            self._worker.kill()

    def close(self) -> None:
        """End the process permanently; another thread may be waiting for a measurement."""
        self._is_closed = True
        if self._worker is not None:
            self._worker.end()

    def _answer(self, worker: Worker, request: Options | Unit, seconds: float) -> Machine | Report | Refusal | Fault:
        """The answer to a request; ``seconds`` is the time limit for each message."""
        worker.send("", pickle.dumps(request), seconds)
        try:
            while isinstance(message := pickle.loads(worker.receive(seconds)), Running):
                worker.item = str(message.kernel or "")
        except WorkerError as error:
            why = ": it hangs" if error.status is None else ""
            raise WorkerError(error.item, f"the measuring process {error}{why}", error.status) from None
        answer: Machine | Report | Refusal | Fault = message
        return answer

    def __enter__(self) -> MeasuringProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Measured(NamedTuple):
    """A measured unit, with its report and the machine that measured it."""

    unit: Unit
    report: Report
    machine: Machine


class GpuPool(Protocol):
    """Measures units on one or several GPUs of one model. A context manager: its processes end with the block."""

    @property
    def gpus(self) -> int:
        """Number of units measured in parallel."""

    def start(self, options: Options) -> Machine:
        """Start the measuring processes; returns the machine of the first.

        Raises:
            DeviceError: no GPU can measure.
        """

    def compile_many(
        self,
        configs: Iterable[GemmConfig],
        *,
        jobs: int | None,
        store: Store,
        on_done: Callable[[pool.Outcome], None] | None,
    ) -> list[pool.Outcome]:
        """Compile kernels; the interface is that of :func:`~gemmill.runtime.compile.pool.compile_many`."""

    def measure(self, units: Iterator[Unit], faulty: dict[SlicedKernel, str]) -> Iterator[Measured]:
        """Measure units; each is consumed when a GPU is free, and yielded when it is done.

        Args:
            units: the units to measure.
            faulty: kernels to skip, with the reason. Kernels that crash are added.

        Raises:
            DeviceError: a measuring process cannot be restarted.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalGpus:
    """GPUs of this machine, each with a measuring process.

    Args:
        gpus: GPUs as in ``CUDA_VISIBLE_DEVICES``; empty: the first that the current process sees.
        process: makes a measuring process.
    """

    compile_many = staticmethod(pool.compile_many)

    def __init__(self, gpus: Sequence[str] = (), process: Callable[..., MeasuringProcess] = MeasuringProcess) -> None:
        self._names: Sequence[str | None] = gpus or (None,)
        self._make = process
        self._processes: list[MeasuringProcess] = []

    @property
    def gpus(self) -> int:
        """Number of units measured in parallel."""
        return len(self._names)

    def start(self, options: Options) -> Machine:
        """Start the processes; returns the machine of the first.

        Raises:
            DeviceError: a GPU cannot measure, or the GPUs are of several models.
        """
        self._processes = [self._make(options, gpu=gpu) for gpu in self._names]
        with ThreadPoolExecutor(self.gpus, "start") as threads:
            machines = [*threads.map(MeasuringProcess.start, self._processes)]
        check_machines({gpu or "this machine": machine for gpu, machine in zip(self._names, machines, strict=True)})
        return machines[0]

    def measure(self, units: Iterator[Unit], faulty: dict[SlicedKernel, str]) -> Iterator[Measured]:
        """Measure units, one at a time on each GPU."""
        idle = [*self._processes]
        threads = ThreadPoolExecutor(self.gpus, "measure")
        running: dict[Future[Report], tuple[Unit, MeasuringProcess]] = {}
        try:
            while True:
                while idle and (unit := next(units, None)) is not None:
                    process = idle.pop(0)
                    running[threads.submit(measure, process, unit, faulty)] = unit, process
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    unit, process = running.pop(future)
                    idle.append(process)
                    yield Measured(unit, future.result(), process.machine)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.close()


def local_gpus(count: int | None) -> tuple[str, ...]:
    """The first ``count`` GPUs of this machine, as in ``CUDA_VISIBLE_DEVICES``; None: all.

    Raises:
        DeviceError: the machine has fewer.
    """
    present = driver.device_count()
    if not present or (count is not None and count > present):
        requested = "all GPUs were" if count is None else f"{count} GPU{'s were' if count > 1 else ' was'}"
        raise DeviceError(f"{requested} requested, but {present} found; run gemmill doctor")
    return tuple(driver.uuid(device) for device in range(count or present))


def check_machines(machines: Mapping[str, Machine]) -> None:
    """Raise DeviceError unless all machines have the same model of GPU and the same version of gemmill."""
    first = next(iter(machines.values()))
    if any((m.gpu, m.gemmill) != (first.gpu, first.gemmill) for m in machines.values()):
        listed = "; ".join(f"{name} has {m.gpu} and gemmill {m.gemmill}" for name, m in machines.items())
        raise DeviceError(
            f"a sweep requires one model of GPU and one version of gemmill, but {listed}; run a sweep for each model "
            "(they may write to the same file)"
        )


def measure(process: MeasuringProcess, unit: Unit, faulty: dict[SlicedKernel, str]) -> Report:
    """Measure a unit without the kernels and baselines in ``faulty``; those that crash are added to it. The time limit
    of the unit includes the time of crashes."""
    begin = time.monotonic()
    while True:
        failed = tuple(Outcome(x, "failed", says=faulty[x]) for x in unit.candidates if x in faulty)
        baselines = tuple(name for name in unit.baselines if SlicedKernel(name) not in faulty)
        sound = tuple(kernel for kernel in unit.kernels if kernel not in faulty)
        if not sound:
            return Report(failed, None)
        remaining = None if unit.seconds is None else max(0.0, unit.seconds - (time.monotonic() - begin))
        try:
            sound_unit = replace(unit, kernels=sound, baselines=baselines, seconds=remaining)
            report = process.measure(sound_unit)
        except WorkerError as error:
            if crashed := [x for x in unit.candidates if str(x) == error.item]:
                faulty[crashed[0]] = f"crashed on {unit.problem}: {error}"
                continue
            # No kernel was running: the operands may be too large for the GPU.
            outcomes = tuple(Outcome(kernel, "failed", says=str(error)) for kernel in sound)
            return Report(failed + outcomes, None)
        return replace(report, outcomes=failed + report.outcomes)
