"""Kernels compiled by the workers of a dask cluster that have no GPU: for sweeps, and for a server alike.

A dask worker has a process of its own compile, so that a kernel that takes down its compiler costs that process alone.
What is lost all the same, with the process, the dask worker or its machine, goes elsewhere, once more, and then fails.
Dask itself would run what kills workers on one after the other, up to a limit that its scheduler has for all. So each
job is bound to one worker, and who submitted it looks whether that is still there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple, Self

from gemmill.emitters.emit import emit
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import CompileError, ConfigError, DeviceError
from gemmill.profiler.sweep.scheduler import RESOURCE, connected, dask, listens
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.pool import HANGS_SECONDS, CompilePool, Outcome, in_threads
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

AT_A_TIME = 64
"""Kernels that a cluster is given at a time unless it is said; with fewer threads it has them wait."""
LOOK_SECONDS = 1.0
"""How often it is looked which workers there are."""
SILENT_SECONDS = 30.0
"""A worker that has not been heard of for so long hangs, and a scheduler that is away has gone; those that restart are
back by then."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Worker:
    """A dask worker. One that restarts, perhaps at the same address, has another folder."""

    address: str
    folder: str
    threads: int

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]


class _LastSeen(NamedTuple):
    """When a worker was last heard of: by the scheduler's clock, and by ours when that had changed."""

    theirs: float
    ours: float


class _LostError(Exception):
    """A worker lost a job that another may do."""


class ClusterCompilers:
    """The workers of a scheduler that have no GPU. Threads may share it; use it as a context manager.

    Args:
        scheduler: its address, ``tls://host:8786``; certificates are those of dask's settings.

    Raises:
        DeviceError: dask is missing, the address is one that anybody may talk to, or nobody answers.
    """

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._client: Any = connected(scheduler)
        self._news = threading.Condition()
        self._workers: dict[_Worker, _LastSeen] = {}
        self._busy: Counter[_Worker] = Counter()
        self._problem = ""
        self._closed = threading.Event()
        self._look()
        threading.Thread(target=self._watch, name="gemmill-cluster", daemon=True).start()

    @property
    def problem(self) -> str:
        """Why nothing can be compiled now; empty where it can."""
        if self._problem or self._alive():
            return self._problem
        return (
            f"no worker of the dask scheduler at {self._scheduler} compiles: start some, dask worker "
            f"{self._scheduler}, without the resource {RESOURCE}, which those that measure have"
        )

    def compile(self, config: GemmConfig, seconds: float) -> Outcome:
        """One kernel, which may take so many seconds of a worker; what one loses goes to another, once.

        Raises:
            DeviceError: the scheduler has gone, or has no workers.
        """
        return self._compiled(config, self._compiler.key(emit(config), config), seconds)

    def _compiled(self, config: GemmConfig, key: str, seconds: float) -> Outcome:
        """:meth:`compile`, of a kernel whose key is known."""
        name, start = kernel_name(config), time.perf_counter()
        failed: list[tuple[_Worker, str]] = []
        while len(failed) < 2:
            worker = self._take([worker for worker, _ in failed])
            try:
                failure_text, cached, pch, data = self._attempt(worker, name, seconds)
                artifact = None if failure_text else self._checked_artifact(data, key)
            except CancelledError:  # the scheduler has gone, and the worker is not to blame
                self._closed.wait(LOOK_SECONDS)
                continue
            except _LostError as error:
                _log.warning("%s: %s: %s", name, worker.address, error)
                failed.append((worker, str(error)))
                continue
            finally:
                with self._news:
                    self._busy[worker] -= 1
                    self._news.notify_all()
            failure = CompileError(failure_text) if failure_text else None
            return Outcome(config, artifact, failure, cached, time.perf_counter() - start, pch)
        reports = "; then ".join(f"{worker.address}: {why}" for worker, why in failed)
        lost = CompileError(f"{name}: two workers of the cluster lost it: {reports}")
        return Outcome(config, None, lost, False, time.perf_counter() - start, "", lost=True)

    def compile_many(
        self,
        configs: Iterable[GemmConfig],
        *,
        jobs: int | None,
        store: Store,
        on_done: Callable[[Outcome], None] | None,
    ) -> list[Outcome]:
        """As :func:`~gemmill.runtime.compile.pool.compile_many`: what the store lacks is compiled by the workers, so
        many at a time, and kept there.

        Raises:
            ToolchainError: there is none here, which says what workers must make.
            DeviceError: the scheduler has gone, or has no workers.
        """
        configs, _ = list(configs), self._compiler
        return in_threads(lambda config: self._have_in_store(config, store), configs, jobs or AT_A_TIME, on_done)

    def close(self) -> None:
        """Leave the cluster, which goes on. What is compiled for this process is given up."""
        self._closed.set()
        with self._news:
            self._news.notify_all()
        self._client.close(timeout=LOOK_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _compiler(self) -> Compiler:
        """What says keys."""
        return Compiler()

    def _have_in_store(self, config: GemmConfig, store: Store) -> Outcome:
        """A kernel from the store, or from the workers and then there."""
        try:
            key = self._compiler.key(emit(config), config)
        except ConfigError as error:
            return Outcome(config, None, error, False, 0.0, "")
        if (artifact := store.get(key)) is not None:
            return Outcome(config, artifact, None, True, 0.0, "")
        outcome = self._compiled(config, key, HANGS_SECONDS)
        if outcome.artifact is not None:
            store.put(key, outcome.artifact)
        return outcome

    def _take(self, failed: Sequence[_Worker]) -> _Worker:
        """A worker with a free thread: one that has not failed, if there is one, and rather on another machine."""
        until = time.monotonic() + SILENT_SECONDS
        with self._news:
            while not self._closed.is_set():
                alive = self._alive()
                if alive and not self._problem:
                    until = time.monotonic() + SILENT_SECONDS
                    others = [worker for worker in alive if worker not in failed] or alive
                    if free := [worker for worker in others if self._busy[worker] < worker.threads]:
                        hosts = {worker.host for worker in failed}
                        chosen = min(free, key=lambda w: (w.host in hosts, self._busy[w] / w.threads))
                        self._busy[chosen] += 1
                        return chosen
                elif time.monotonic() > until:
                    break
                self._news.wait(LOOK_SECONDS)
        raise DeviceError(self.problem or "the cluster is left")

    def _attempt(self, worker: _Worker, name: str, seconds: float) -> tuple[str, bool, str, bytes]:
        """What :func:`compiled` returns on a worker. CancelledError where the scheduler has gone."""
        # Never the result of a job before: the store knows what there is. Other clients may be before this one there.
        until = time.monotonic() + 2 * seconds + SILENT_SECONDS
        bound = {"workers": [worker.address], "allow_other_workers": False, "pure": False, "retries": 0}
        try:
            future = self._client.submit(compiled, name, seconds, worker.folder, **bound)
        except Exception as error:  # of a client that has just been closed
            raise CancelledError from error
        try:
            while True:
                with suppress(TimeoutError):
                    failure_text, is_lost, cached, pch, data = future.result(timeout=LOOK_SECONDS)
                    if is_lost:
                        raise _LostError(failure_text.removeprefix(f"{name}: "))
                    return failure_text, cached, pch, data
                if self._closed.is_set():
                    raise CancelledError
                if worker not in self._workers:
                    raise _LostError("it died, or was ended")
                if worker not in self._alive():
                    raise _LostError(f"it has not been heard of for {SILENT_SECONDS:.0f} s")
                if time.monotonic() > until:
                    raise _LostError(f"it had no answer after {2 * seconds + SILENT_SECONDS:.0f} s")
        except (CancelledError, _LostError):
            raise
        except Exception as error:  # what a worker raises: it lacks gemmill, or has another
            raise _LostError(f"{type(error).__name__}: {error!s:.300}") from error
        finally:
            future.release()

    def _checked_artifact(self, data: bytes, key: str) -> Artifact:
        """What came from a worker, if it is what would have been compiled here."""
        try:
            artifact = Artifact.from_bytes(data)
        except ValueError as error:
            raise _LostError(f"what it sent is damaged: {error}") from error
        if artifact.key != key:
            theirs, ours = artifact.provenance.nvrtc_version, self._compiler.toolchain.versions["nvrtc"]
            raise _LostError(
                f"its toolchain (NVRTC {theirs}) is another than the one here ({ours}): install the same versions, of "
                "gemmill as well"
            )
        return artifact

    def _alive(self) -> list[_Worker]:
        """The workers that are there, and were heard of."""
        oldest = time.monotonic() - SILENT_SECONDS
        return [worker for worker, last_seen in self._workers.copy().items() if last_seen.ours > oldest]

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        """Find out which workers there are; connect again where the scheduler was away."""
        try:
            if self._client.status == "closed" and listens(self._scheduler):
                self._client = connected(self._scheduler)
            if self._client.status != "running":
                raise DeviceError("nothing answers there")
            call = self._client.scheduler.identity
            reports = self._client.sync(call, n_workers=-1, callback_timeout=SILENT_SECONDS)["workers"]
        except Exception as error:  # noqa: BLE001 - whatever has happened, who compiles is told, and it is looked again
            why = f"the dask scheduler at {self._scheduler} has gone ({type(error).__name__}: {error})"
            if not (self._problem or self._closed.is_set()):
                _log.warning("%s", why)
            with self._news:
                self._problem = why
            return
        with self._news:
            self._problem, self._workers = "", self._last_seen(reports)
            for worker in [worker for worker, count in self._busy.items() if not count]:
                del self._busy[worker]
            self._news.notify_all()

    def _last_seen(self, reports: Mapping[str, Mapping[str, Any]]) -> dict[_Worker, _LastSeen]:
        """The workers that a scheduler tells of, and when each was heard of."""
        found, now = {}, time.monotonic()
        for address, facts in reports.items():
            if facts["resources"].get(RESOURCE) or facts["status"] != "running":
                continue
            worker, seen = _Worker(address, facts["local_directory"], facts["nthreads"]), facts["last_seen"]
            before = self._workers.get(worker)
            found[worker] = before if before is not None and before.theirs == seen else _LastSeen(seen, now)
        return found


# What follows runs in dask workers.
_pool_lock = threading.Lock()
_pools: list[CompilePool] = []


def compiled(name: str, seconds: float, folder: str) -> tuple[str, bool, bool, str, bytes]:
    """Compile a kernel, once: error, whether the kernel is not to blame, whether the store had it, what became of the
    header, the kernel."""
    worker = dask().get_worker()
    if worker.local_directory != folder:
        return "it has restarted", True, False, "", b""
    with _pool_lock:
        if not _pools:
            _pools.append(CompilePool(worker.state.nthreads, Store()))
    outcome = _pools[0].attempt(parse_name(name), seconds)
    data = b"" if outcome.artifact is None else outcome.artifact.to_bytes()
    return str(outcome.error or ""), outcome.lost, outcome.cached, outcome.pch, data
