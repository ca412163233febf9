"""Compile kernels on the workers of a dask cluster that have no GPU, for sweeps and for the service.

A dask worker compiles in a separate process, so that a kernel that crashes the compiler ends only that process. If a
process, dask worker or machine dies, another worker compiles the kernel once more; after a second loss it fails. Dask
itself would retry such a job on one worker after the other, up to a global limit. Therefore each job is bound to one
worker, and this module checks whether the worker is alive.
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
"""Default number of kernels submitted at a time; a cluster with fewer threads queues them."""
LOOK_SECONDS = 1.0
"""How often the list of workers is updated."""
SILENT_SECONDS = 30.0
"""A worker without a sign of life for this long hangs, and a scheduler that cannot be reached for this long is gone.
Restarts take less."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Worker:
    """A dask worker. After a restart, it may have the same address but has another folder."""

    address: str
    folder: str
    threads: int

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]


class _LastSeen(NamedTuple):
    """The last sign of life of a worker: by the scheduler's clock, and by the local clock when that value changed."""

    theirs: float
    ours: float


class _LostError(Exception):
    """A worker lost a job; another worker may retry it."""


class ClusterCompilers:
    """The workers of a scheduler that have no GPU. Thread-safe; use it as a context manager.

    Args:
        scheduler: address of the scheduler, ``tls://host:8786``; the certificates are those of dask's settings.

    Raises:
        DeviceError: dask is not installed, the address does not use TLS, or the scheduler does not answer.
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
        """Why no kernel can be compiled now; empty if workers are available."""
        if self._problem or self._alive():
            return self._problem
        return (
            f"no worker of the dask scheduler at {self._scheduler} compiles; start workers without the resource "
            f"{RESOURCE}: dask worker {self._scheduler}"
        )

    def compile(self, config: GemmConfig, seconds: float) -> Outcome:
        """Compile a kernel, within a time limit; if a worker dies, retry once on another.

        Raises:
            DeviceError: the scheduler is gone, or has no workers.
        """
        return self._compiled(config, self._compiler.key(emit(config), config), seconds)

    def _compiled(self, config: GemmConfig, key: str, seconds: float) -> Outcome:
        """:meth:`compile`, for a kernel with a known key."""
        name, start = kernel_name(config), time.perf_counter()
        failed: list[tuple[_Worker, str]] = []
        while len(failed) < 2:
            worker = self._take([worker for worker, _ in failed])
            try:
                failure_text, cached, pch, data = self._attempt(worker, name, seconds)
                artifact = None if failure_text else self._checked_artifact(data, key)
            except CancelledError:  # the scheduler is gone; this does not count against the worker
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
        lost = CompileError(f"{name}: failed on two workers of the cluster: {reports}")
        return Outcome(config, None, lost, False, time.perf_counter() - start, "", lost=True)

    def compile_many(
        self,
        configs: Iterable[GemmConfig],
        *,
        jobs: int | None,
        store: Store,
        on_done: Callable[[Outcome], None] | None,
    ) -> list[Outcome]:
        """Compile the kernels that the store lacks, ``jobs`` at a time, and store them; the interface is that of
        :func:`~gemmill.runtime.compile.pool.compile_many`.

        Raises:
            ToolchainError: this machine has no toolchain, which determines the keys of kernels.
            DeviceError: the scheduler is gone, or has no workers.
        """
        configs, _ = list(configs), self._compiler
        return in_threads(lambda config: self._have_in_store(config, store), configs, jobs or AT_A_TIME, on_done)

    def close(self) -> None:
        """Disconnect from the cluster; running compilations for this process are abandoned."""
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
        """Computes keys."""
        return Compiler()

    def _have_in_store(self, config: GemmConfig, store: Store) -> Outcome:
        """A kernel from the store, or compiled by the workers and then stored."""
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
        """A worker with a free thread; prefers workers that have not failed, and other machines than theirs."""
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
        raise DeviceError(self.problem or "disconnected from the cluster")

    def _attempt(self, worker: _Worker, name: str, seconds: float) -> tuple[str, bool, str, bytes]:
        """Run :func:`compiled` on a worker. CancelledError if the scheduler is gone."""
        # Not pure: dask must not return an old result. The time limit includes jobs of other clients on the worker.
        until = time.monotonic() + 2 * seconds + SILENT_SECONDS
        bound = {"workers": [worker.address], "allow_other_workers": False, "pure": False, "retries": 0}
        try:
            future = self._client.submit(compiled, name, seconds, worker.folder, **bound)
        except Exception as error:  # the client has just been closed
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
                    raise _LostError("the worker died or was stopped")
                if worker not in self._alive():
                    raise _LostError(f"no sign of life for {SILENT_SECONDS:.0f} s")
                if time.monotonic() > until:
                    raise _LostError(f"no answer within {2 * seconds + SILENT_SECONDS:.0f} s")
        except (CancelledError, _LostError):
            raise
        except Exception as error:  # raised by the worker, for example if it lacks gemmill or has another version
            raise _LostError(f"{type(error).__name__}: {error!s:.300}") from error
        finally:
            future.release()

    def _checked_artifact(self, data: bytes, key: str) -> Artifact:
        """The kernel that a worker sent, if its key is that of this machine's toolchain."""
        try:
            artifact = Artifact.from_bytes(data)
        except ValueError as error:
            raise _LostError(f"the worker sent a damaged kernel: {error}") from error
        if artifact.key != key:
            theirs, ours = artifact.provenance.nvrtc_version, self._compiler.toolchain.versions["nvrtc"]
            raise _LostError(
                f"the worker has another toolchain (NVRTC {theirs}) than this machine ({ours}); install the same "
                "versions of NVRTC and gemmill"
            )
        return artifact

    def _alive(self) -> list[_Worker]:
        """The workers with a recent sign of life."""
        oldest = time.monotonic() - SILENT_SECONDS
        return [worker for worker, last_seen in self._workers.copy().items() if last_seen.ours > oldest]

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        """Update the list of workers; reconnect if the scheduler was gone."""
        try:
            if self._client.status == "closed" and listens(self._scheduler):
                self._client = connected(self._scheduler)
            if self._client.status != "running":
                raise DeviceError("no answer")
            call = self._client.scheduler.identity
            reports = self._client.sync(call, n_workers=-1, callback_timeout=SILENT_SECONDS)["workers"]
        except Exception as error:  # noqa: BLE001 (every error is reported to callers, and retried)
            why = f"lost the dask scheduler at {self._scheduler} ({type(error).__name__}: {error})"
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
        """The workers in a report of the scheduler, and the last sign of life of each."""
        workers, now = {}, time.monotonic()
        for address, facts in reports.items():
            if facts["resources"].get(RESOURCE) or facts["status"] != "running":
                continue
            worker, last_seen = _Worker(address, facts["local_directory"], facts["nthreads"]), facts["last_seen"]
            previous = self._workers.get(worker)
            workers[worker] = (
                previous if previous is not None and previous.theirs == last_seen else _LastSeen(last_seen, now)
            )
        return workers


# The following function runs in dask workers.
_pool_lock = threading.Lock()
_pools: list[CompilePool] = []


def compiled(name: str, seconds: float, folder: str) -> tuple[str, bool, bool, str, bytes]:
    """Compile a kernel; returns the error, whether the worker rather than the kernel caused it, whether the store had
    the kernel, the state of the precompiled header, and the kernel."""
    worker = dask().get_worker()
    if worker.local_directory != folder:
        return "the worker has restarted", True, False, "", b""
    with _pool_lock:
        if not _pools:
            _pools.append(CompilePool(worker.state.nthreads, Store()))
    outcome = _pools[0].attempt(parse_name(name), seconds)
    data = b"" if outcome.artifact is None else outcome.artifact.to_bytes()
    return str(outcome.error or ""), outcome.lost, outcome.cached, outcome.pch, data
