"""Sweeps over several GPUs with the workers of a dask cluster, one worker per GPU.

A dask worker never uses CUDA itself. It starts a measuring process, like a sweep on one GPU, so that a kernel that
faults or hangs ends only that process. If a dask worker dies anyway, another one measures its unit. Units contain the
compiled kernels, and the sweep writes the records, so workers need no compiler, no store and no shared file system.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import DeviceError
from gemmill.profiler.measure.messages import Machine, Options, Outcome, Report, Unit
from gemmill.profiler.sweep.compilers import ClusterCompilers
from gemmill.profiler.sweep.measuring import START_SECONDS, Measured, MeasuringProcess, check_machines, measure
from gemmill.profiler.sweep.scheduler import RESOURCE, connected, dask
from gemmill.runtime.compile import pool
from gemmill.runtime.storage.store import Store

POLL_SECONDS = 30.0
"""How often a waiting sweep checks whether workers remain."""


class Cluster:
    """The dask workers of a cluster that have a GPU.

    Args:
        scheduler: address of a running scheduler, such as ``tls://host:8786``.
        process: makes the measuring process.
    """

    def __init__(self, scheduler: str, process: Callable[[Options], MeasuringProcess] = MeasuringProcess) -> None:
        self._scheduler = scheduler
        self._process = process
        self._sweep = uuid.uuid4().hex
        self._stack = ExitStack()

    @property
    def gpus(self) -> int:
        """Number of workers, but at least one, since a worker that died may be restarting."""
        return max(1, len(self._workers()))

    def start(self, options: Options) -> Machine:
        """Start a measuring process on each worker; returns the machine of the first.

        Raises:
            DeviceError: dask is not installed, the scheduler does not answer, no worker has a GPU, a worker cannot
                measure, or the GPUs are of several models.
        """
        self._dask: Any = dask()
        self._client = self._stack.enter_context(connected(self._scheduler))
        self._start_once = partial(_start_once, self._sweep, partial(self._process, options))
        workers = self._workers()
        if not workers or max(workers.values()) > 1:
            address = self._client.scheduler.address
            has = f"{max(workers, key=workers.__getitem__)} has several GPUs" if workers else "no worker has a GPU"
            raise DeviceError(
                f"each worker of the dask scheduler at {address} must have one GPU, but {has}; start one for each GPU: "
                f"CUDA_VISIBLE_DEVICES=0 dask worker {address} --nthreads 1 --resources {RESOURCE}=1"
            )
        futures = {worker: self._submit(_machine, self._start_once, workers=[worker]) for worker in workers}
        self._stack.callback(self._stop)
        machines: dict[str, Machine] = {}
        for worker, future in futures.items():
            try:
                machines[worker] = future.result(timeout=START_SECONDS)
            except TimeoutError:
                why = f"no answer within {START_SECONDS:.0f} s; the worker is gone, or busy with another sweep"
                raise DeviceError(f"{worker}: {why}") from None
            except (ImportError, RuntimeError) as error:
                why = f"cannot measure: {error}; install gemmill's extras cluster and torch for scheduler and workers"
                raise DeviceError(f"{worker}: {why}") from error
        self._machine = next(iter(machines.values()))
        check_machines(machines)
        users: dict[str, str] = {}
        for worker, machine in machines.items():
            if (other := users.setdefault(machine.uuid, worker)) != worker:
                raise DeviceError(
                    f"{other} and {worker} share {machine.uuid}; set CUDA_VISIBLE_DEVICES to another GPU for each"
                )
        return self._machine

    def compile_many(
        self,
        configs: Iterable[GemmConfig],
        *,
        jobs: int | None,
        store: Store,
        on_done: Callable[[pool.Outcome], None] | None,
    ) -> list[pool.Outcome]:
        """Compile on the workers without a GPU; if there are none, on this machine."""
        with ClusterCompilers(self._scheduler) as compilers:
            if not compilers.problem:
                return compilers.compile_many(configs, jobs=jobs, store=store, on_done=on_done)
        return pool.compile_many(configs, jobs=jobs, store=store, on_done=on_done)

    def measure(self, units: Iterator[Unit], faulty: dict[SlicedKernel, str]) -> Iterator[Measured]:
        """Measure units, one per worker at a time.

        If a worker dies, another one measures its unit. Dask gives up a task after several such deaths, and counts the
        death of a worker against all of its tasks. The sweep therefore measures such units again at the end, one by
        one.
        """
        futures: dict[Any, Unit] = {}
        suspects: list[Unit] = []

        def hand_out(unit: Unit) -> None:
            faults = {x: faulty[x] for x in unit.candidates if x in faulty}
            futures[self._submit(_measure, self._start_once, unit, faults)] = unit

        while True:
            while len(futures) < self.gpus and (unit := next(units, None)) is not None:
                hand_out(unit)
            alone = not futures
            if alone:
                if not suspects:
                    return
                hand_out(suspects.pop(0))
            future = self._first(list(futures))
            unit = futures.pop(future)
            try:
                worker, machine, report, crashed = future.result()
            except self._dask.KilledWorker as error:
                if not alone:
                    suspects.append(unit)
                    continue
                why = f"{error.allowed_failures + 1} dask workers died while they measured only {unit.problem}"
                outcomes = (Outcome(kernel, "failed", says=why) for kernel in unit.kernels)
                yield Measured(unit, Report(tuple(outcomes), None), self._machine)
                continue
            check_machines({self._client.scheduler.address: self._machine, worker: machine})
            faulty |= crashed
            yield Measured(unit, report, machine)

    def _workers(self) -> dict[str, float]:
        """Addresses of the workers with GPUs, and their number of GPUs."""
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except OSError as error:
            raise self._gone(error) from error
        return {address: gpus for address, w in workers.items() if (gpus := w["resources"].get(RESOURCE, 0))}

    def _submit(self, function: Callable[..., Any], *arguments: Any, workers: list[str] | None = None) -> Any:
        return self._client.submit(function, *arguments, workers=workers, resources={RESOURCE: 1}, pure=False)

    def _first(self, futures: list[Any]) -> Any:
        """The first future that is done."""
        deserted = False
        while True:
            try:
                with self._client.as_current():
                    return next(iter(self._dask.wait(futures, POLL_SECONDS, "FIRST_COMPLETED").done))
            except TimeoutError:
                if self._workers():
                    deserted = False
                elif deserted:  # a worker that restarts would be back by now
                    raise DeviceError("all dask workers are gone; start workers, then run the sweep again") from None
                else:
                    deserted = True
            except (CancelledError, OSError) as error:
                raise self._gone(error) from error

    def _gone(self, error: BaseException) -> DeviceError:
        return DeviceError(
            f"lost the dask scheduler ({type(error).__name__}); start the scheduler, then run the sweep again"
        )

    def _stop(self) -> None:
        """End the measuring processes, each after its current unit."""
        with suppress(DeviceError):  # the scheduler is gone
            self._dask.fire_and_forget(
                [self._submit(_stop, self._sweep, workers=[worker]) for worker in self._workers()]
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


# The following functions run in dask workers, one task at a time.
_started: dict[str, MeasuringProcess] = {}
"""The measuring process of this worker, by sweep."""


def _start_once(sweep: str, process: Callable[[], MeasuringProcess]) -> MeasuringProcess:
    """The measuring process of a sweep; ends that of an earlier sweep, which may have been killed."""
    if sweep not in _started:
        for other in list(_started):
            _stop(other)
        worker = process()
        worker.start()
        _started[sweep] = worker
    return _started[sweep]


def _stop(sweep: str) -> None:
    if sweep in _started:
        _started.pop(sweep).stop()


def _machine(start_once: Callable[[], MeasuringProcess]) -> Machine:
    with _worker_address():
        return start_once().machine


def _measure(
    start_once: Callable[[], MeasuringProcess], unit: Unit, faulty: dict[SlicedKernel, str]
) -> tuple[str, Machine, Report, dict[SlicedKernel, str]]:
    """Measure a unit; returns the address of this worker, its machine, the report, and the kernels that crashed."""
    with _worker_address() as address:
        worker = start_once()
        report = measure(worker, unit, faulty)
        return address, worker.machine, report, faulty


@contextmanager
def _worker_address() -> Iterator[str]:
    """The address of this worker, which is also prepended to errors."""
    address: str = importlib.import_module("distributed").get_worker().address
    try:
        yield address
    except DeviceError as error:
        raise DeviceError(f"{address}: {error}") from None
