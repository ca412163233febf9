"""Compiles many kernels in worker processes, each with a precompiled header of its own.

A kernel travels to its worker as a name, the artifact comes back in its form on disk; nothing is pickled. A worker that
dies or hangs takes down no kernel but its own, which another tries once more; one whose parent dies ends, and removes
what the parent cannot (:mod:`gemmill.runtime.workers`).
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
"""Memory that a worker is reckoned to take: 242 MB were measured with NVRTC 12.9, and as much again in TMPDIR, which
may be memory too."""
HANGS_SECONDS = 1800.0
"""A worker of :func:`compile_many` that takes so long over a kernel, most of which take a core 2 to 30, hangs."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one kernel."""

    config: GemmConfig
    """The kernel."""
    artifact: Artifact | None
    """The compiled kernel; None if it failed."""
    error: GemmillError | None
    """Why it failed; None if it did not."""
    cached: bool
    """Whether the store had it."""
    seconds: float
    """Time from handing the kernel to a worker until its result was back."""
    pch: str
    """What became of the precompiled header (:data:`~gemmill.runtime.compile.compiler.PchOutcome`); empty if not
    compiled."""
    lost: bool = False
    """Whether it failed by the process that compiled it, or by the machine, and not by what the kernel is."""

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
    """Compile kernels in parallel; in this process where no other can be started.

    Args:
        configs: the kernels.
        jobs: worker processes; by default ``GEMMILL_JOBS`` or :func:`default_jobs`.
        store: where kernels are looked up first and kept; None compiles all and keeps none.
        on_done: called in this thread for each kernel as it finishes, in whatever order.
        seconds: how long one may take; a worker that takes longer is ended.

    Returns:
        An outcome for each config, in order. A kernel that fails, or that two workers died of, is an outcome with an
        error.

    Raises:
        ToolchainError: NVRTC or headers are missing or clash.
        ValueError: fewer than one worker process is asked for.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: at least 1 process must compile; None takes one for each processor")
    configs = list(configs)
    if not configs:
        return []
    Compiler()  # an incomplete toolchain is reported here, once, rather than by every worker
    jobs = min(jobs or default_jobs(), len(configs))
    with closing(CompilePool(jobs, store)) as pool:

        def compile_one(config: GemmConfig) -> Outcome:
            try:
                return pool.compile(config, seconds)
            except InstallationError as error:  # limits, no interpreter
                if pool.is_closed:
                    return _lost(config, str(error), time.perf_counter())
                _log.warning("a process that compiles cannot be started: %s", error)
                return pool.compile_here(config)

        return in_threads(compile_one, configs, jobs, on_done, pool.close)


def in_threads(
    compile_one: Callable[[GemmConfig], Outcome],
    configs: list[GemmConfig],
    jobs: int,
    on_done: Callable[[Outcome], None] | None,
    give_up: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Outcomes of kernels, in order, so many at a time; ``on_done`` is called in this thread, and ``give_up`` where an
    exception ends it."""
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
    """Makes do with the threads that it has where the system starts no more."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


def default_jobs() -> int:
    """Worker processes by default: one for each processor that this process may keep busy, and no more than
    fit into the memory that is left to it."""
    if jobs := Settings.read().jobs:
        return jobs
    memory = limits.memory()
    return min(limits.processors(), max(1, memory // MEMORY_BYTES) if memory is not None else sys.maxsize)


class CompilePool:
    """Processes that compile for as long as a program runs; :meth:`compile` keeps one busy, and threads share them.

    Args:
        jobs: processes at most, which is how many threads call it; one is started when it is first needed.
        store: where kernels are looked up first and kept; None compiles all and keeps none.
    """

    def __init__(self, jobs: int, store: Store | None) -> None:
        self._jobs, self._store = jobs, store
        self._stack = ExitStack()
        self._directory: Path | None = None
        self._headers: int | None = None  # until the first process is started
        self._workers = WorkerPool(self._start)
        self._here = threading.Lock()

    problem = ""
    """Why nothing can be compiled now: there is nothing."""

    @property
    def is_closed(self) -> bool:
        """Whether its processes have been ended."""
        return self._workers.is_closed

    def compile(self, config: GemmConfig, seconds: float) -> Outcome:
        """One kernel; where a process dies of it, or takes longer than so many seconds, another tries once more.

        Raises:
            InstallationError: no process can be started.
        """
        first = self.attempt(config, seconds)
        if not first.lost or self.is_closed:
            return first
        _log.warning("%s; it is tried once more", first.error)
        second = self.attempt(config, seconds)
        if not second.lost:
            return second
        causes = [str(outcome.error).removeprefix(f"{outcome.name}: ") for outcome in (first, second)]
        what = f"each time {causes[0]}" if causes[0] == causes[1] else "; then ".join(causes)
        return replace(second, error=CompileError(f"{first.name}: tried twice: {what}"))

    def attempt(self, config: GemmConfig, seconds: float) -> Outcome:
        """One kernel, tried once; InstallationError where no process can be started."""
        name = kernel_name(config)
        with self._workers.worker() as worker:
            start = time.perf_counter()
            try:
                reply = worker.call(name, name.encode(), seconds)
            except WorkerError as error:
                if error.status == -signal.SIGBUS:  # TMPDIR, which had room for its header, is full by now
                    self._headers = 0
                if error.status is None:
                    return _lost(config, f"compiling took longer than {seconds:g} s, and was ended", start)
                return _lost(config, _how_it_died(str(error), error.status, len(self._workers.busy)), start)
            return self._outcome(config, reply, start)

    def compile_here(self, config: GemmConfig) -> Outcome:
        """One kernel, compiled by this process."""
        from gemmill.runtime.compile.compile_worker import answer

        with self._here:
            start = time.perf_counter()
            return self._outcome(config, answer(Compiler(store=self._store), config, self._store), start)

    def close(self) -> None:
        """End all processes, whatever they are doing, and remove what they have written beside the store."""
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
    """A process that compiles, with or without a precompiled header."""

    def __init__(self, directory: Path | None, has_header: bool, store: Store | None) -> None:
        # TMPDIR: what a killed worker leaves, precompiled headers above all, goes when the parent removes it.
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
    """The folder in which workers have theirs, None if there can be none; how many have room there for headers."""
    temporary.sweep()
    try:
        folder = temporary.TemporaryFolder("pool")
    except OSError as error:
        _log.warning("kernels compile without precompiled headers, which takes longer: %s", os_error_text(error))
        yield None, 0
        return
    try:
        room = pch.room_in(folder.path)
        headers = min(jobs, room // pch.ROOM_BYTES)
        if headers < jobs:
            without = f"{jobs - headers} of {jobs} processes compile without precompiled headers, which takes longer"
            _log.warning("%s: %s", without, pch.no_room(room))
        yield folder.path, headers
    finally:
        folder.remove()


def _how_it_died(how: str, status: int, jobs: int) -> str:
    why = ""
    if status == -signal.SIGKILL:
        why = (
            f": the system does that where memory runs out. {jobs} compiled at a time, of up to "
            f"{MEMORY_BYTES >> 20} MiB each; --jobs or GEMMILL_JOBS makes them fewer"
        )
    return f"the process that compiled it {how}; other kernels went on{why}"


def _lost(config: GemmConfig, why: str, start: float) -> Outcome:
    error = CompileError(f"{kernel_name(config)}: {why}")
    return Outcome(config, None, error, False, time.perf_counter() - start, "", lost=True)
