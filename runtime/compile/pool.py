"""Compiles many kernels in worker processes, each with its own precompiled header.

A kernel goes to its worker as a name, and the artifact comes back in its file format; nothing is pickled. A worker that
dies or hangs fails only its current kernel, which another worker tries once more. A worker whose parent dies exits, and
removes what the parent cannot (:mod:`gemmill.runtime.workers`).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CompileError, GemmillError, InstallationError
from gemmill.library.files import os_error_text
from gemmill.runtime.compile import limits, pch, temporary
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.workers import Worker, WorkerError, WorkerPool

MEMORY_BYTES = 512 << 20
"""Assumed memory of a worker in bytes: 242 MB were measured with NVRTC 12.9, and as much again in TMPDIR, which may
also be memory."""
HANGS_SECONDS = 1800.0
"""Seconds per kernel after which a worker of :func:`compile_many` counts as hanging; most kernels take one core 2 to 30
s."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of compiling one kernel."""

    config: GemmConfig
    """The kernel."""
    artifact: Artifact | None
    """The compiled kernel; None if it failed."""
    error: GemmillError | None
    """Why it failed; None if it did not."""
    cached: bool
    """Whether the store had it."""
    seconds: float
    """Seconds from sending the kernel to a worker until its result."""
    pch: str
    """State of the precompiled header (:data:`~gemmill.runtime.compile.compiler.PchOutcome`); empty if not compiled."""
    lost: bool = False
    """Whether the failure is due to the worker process or the machine, not to the kernel."""

    @property
    def name(self) -> str:
        """Kernel name."""
        return kernel_name(self.config)


def compile_many(
    configs: Iterable[GemmConfig],
    *,
    jobs: int | None = None,
    store: Store | None = None,
    on_done: Callable[[Outcome], None] | None = None,
    seconds: float = HANGS_SECONDS,
) -> list[Outcome]:
    """Compile kernels in parallel, or in this process where no worker can be started.

    Args:
        configs: the kernels.
        jobs: worker processes; by default ``GEMMILL_JOBS`` or :func:`default_jobs`.
        store: searched first, and keeps the kernels; None compiles all kernels and keeps none.
        on_done: called in this thread for each kernel as it finishes, in any order.
        seconds: time limit per kernel; a worker that takes longer is stopped.

    Returns:
        An outcome for each config, in order. A kernel that fails, or that killed two workers, has an outcome with an
            error.

    Raises:
        ToolchainError: NVRTC or headers are missing or conflict.
        ValueError: ``jobs`` is less than 1.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: must be at least 1, or None for one process per processor")
    configs = list(configs)
    if not configs:
        return []
    Compiler()  # report an incomplete toolchain once, instead of in every worker
    jobs = min(jobs or default_jobs(), len(configs))
    said: set[str] = set()
    with closing(CompilePool(jobs, store)) as pool:

        def compile_one(config: GemmConfig) -> Outcome:
            try:
                return pool.compile(config, seconds)
            except InstallationError as error:  # limits of the system, or no interpreter
                if pool.is_closed:
                    return _lost_outcome(config, str(error), time.perf_counter())
                if (why := str(error)) not in said:
                    said.add(why)
                    _log.warning("compiling in this process, because no worker can be started: %s", why)
                return pool.compile_here(config)

        return in_threads(compile_one, configs, jobs, on_done, pool.close)


def in_threads(
    compile_one: Callable[[GemmConfig], Outcome],
    configs: list[GemmConfig],
    jobs: int,
    on_done: Callable[[Outcome], None] | None,
    give_up: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Return the outcomes of kernels, in order, compiling ``jobs`` at a time. ``on_done`` is called in this thread;
    ``give_up`` is called when an exception ends the loop."""
    threads = _Threads(jobs, "compile")
    try:
        futures = [threads.submit(compile_one, config) for config in configs]
        for future in as_completed(futures):
            if on_done is not None:
                on_done(future.result())
        return [future.result() for future in futures]
    except BaseException:
        give_up()
        raise
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class _Threads(ThreadPoolExecutor):
    """A thread pool that continues with its current threads where the system cannot start more."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


def default_jobs() -> int:
    """Return the default number of worker processes: one per processor that this process may use, but no more than fit
    the free memory."""
    if jobs := Settings.read().jobs:
        return jobs
    memory = limits.memory()
    return min(limits.processors(), max(1, memory // MEMORY_BYTES) if memory is not None else sys.maxsize)


class CompilePool:
    """Compile workers for the life of a program; threads share them, and each call of :meth:`compile` uses one.

    Args:
        jobs: most worker processes, which is also the number of threads that call it; workers start on demand.
        store: searched first, and keeps the kernels; None compiles all kernels and keeps none.
    """

    def __init__(self, jobs: int, store: Store | None) -> None:
        self._jobs, self._store = jobs, store
        self._stack = ExitStack()
        self._directory: Path | None = None
        self._headers: int | None = None  # until the first worker is started
        self._workers = WorkerPool(self._start)
        self._own_process_lock = threading.Lock()

    problem = ""
    """Why nothing can be compiled now; always empty here."""

    @property
    def is_closed(self) -> bool:
        """Whether its workers have been stopped."""
        return self._workers.is_closed

    def compile(self, config: GemmConfig, seconds: float) -> Outcome:
        """Compile one kernel. Where its worker dies or exceeds the time limit, another one tries once more.

        Raises:
            InstallationError: no worker can be started.
        """
        first = self.attempt(config, seconds)
        if not first.lost or self.is_closed:
            return first
        _log.warning("%s; trying once more", first.error)
        second = self.attempt(config, seconds)
        if not second.lost:
            return second
        causes = [str(outcome.error).removeprefix(f"{outcome.name}: ") for outcome in (first, second)]
        what = f"each time {causes[0]}" if causes[0] == causes[1] else "; then ".join(causes)
        return replace(second, error=CompileError(f"{first.name}: failed twice: {what}"))

    def attempt(self, config: GemmConfig, seconds: float) -> Outcome:
        """Try to compile one kernel once; InstallationError where no worker can be started."""
        name = kernel_name(config)
        with self._workers.worker() as worker:
            start = time.perf_counter()
            try:
                reply = worker.call(name, name.encode(), seconds)
            except WorkerError as error:
                if error.status == -signal.SIGBUS:  # TMPDIR had enough space for its header, but is full now
                    self._headers = 0
                if error.status is None:
                    return _lost_outcome(config, f"compiling took longer than {seconds:g} s and was stopped", start)
                return _lost_outcome(config, _death_message(str(error), error.status, len(self._workers.busy)), start)
            return self._outcome(config, reply, start)

    def compile_here(self, config: GemmConfig) -> Outcome:
        """Compile one kernel in this process."""
        from gemmill.runtime.compile.compile_worker import answer

        with self._own_process_lock:
            start = time.perf_counter()
            return self._outcome(config, answer(Compiler(store=self._store), config, self._store), start)

    def close(self) -> None:
        """Stop all workers immediately, and remove their temporary files."""
        self._workers.close()
        self._stack.close()

    def _start(self) -> _CompileWorker:
        if self._headers is None:
            self._directory, self._headers = self._stack.enter_context(_directory(self._jobs))
        has_header = sum(worker.has_header for worker in self._workers.busy) < self._headers
        return _CompileWorker(self._directory, has_header, self._store)

    def _outcome(self, config: GemmConfig, reply: bytes, start: float) -> Outcome:
        head, _, data = reply.partition(b"\n")
        facts: dict[str, str] = json.loads(head)
        if self._store is not None and facts["problem"]:
            self._store.report(facts["problem"])
        seconds, pch_outcome = time.perf_counter() - start, facts["pch"]
        if facts["error"]:
            error = CompileError(facts["error"])
            return Outcome(config, None, error, False, seconds, pch_outcome, lost=bool(facts["lost"]))
        return Outcome(config, Artifact.from_bytes(data), None, not pch_outcome, seconds, pch_outcome)


class _CompileWorker(Worker):
    """A worker that compiles, with or without a precompiled header."""

    def __init__(self, directory: Path | None, has_header: bool, store: Store | None) -> None:
        # TMPDIR: the parent removes what a killed worker leaves, mainly precompiled headers.
        environment = {**os.environ, "TMPDIR": str(directory)} if directory else None
        super().__init__("gemmill.runtime.compile.compile_worker", environment=environment)
        self.has_header = has_header
        settings = {
            "store": None if store is None else str(store.path),
            "max_bytes": None if store is None else store.max_bytes,
            "directory": None if directory is None else str(directory),
            "has_header": has_header,
        }
        self.send("", json.dumps(settings).encode(), HANGS_SECONDS)


@contextmanager
def _directory(jobs: int) -> Iterator[tuple[Path | None, int]]:
    """Yield the folder for the workers' folders, or None, and how many workers have space there for precompiled
    headers."""
    temporary.sweep()
    try:
        folder = temporary.TemporaryFolder("pool")
    except OSError as error:
        _log.warning("compiling without precompiled headers, which takes longer: %s", os_error_text(error))
        yield None, 0
        return
    try:
        room = pch.room_in(folder.path)
        headers = min(jobs, room // pch.ROOM_BYTES)
        if headers < jobs:
            notice = f"{jobs - headers} of {jobs} processes compile without precompiled headers, which takes longer"
            _log.warning("%s: %s", notice, pch.no_room(room))
        yield folder.path, headers
    finally:
        folder.remove()


def _death_message(how: str, status: int, jobs: int) -> str:
    why = ""
    if status == -signal.SIGKILL:
        why = (
            f": the system kills processes when memory runs out. {jobs} processes were compiling, with up to "
            f"{MEMORY_BYTES >> 20} MiB each; reduce --jobs or GEMMILL_JOBS"
        )
    return f"its compile worker {how}; other kernels are not affected{why}"


def _lost_outcome(config: GemmConfig, why: str, start: float) -> Outcome:
    error = CompileError(f"{kernel_name(config)}: {why}")
    return Outcome(config, None, error, False, time.perf_counter() - start, "", lost=True)
