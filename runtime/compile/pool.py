"""Compiles many kernels in worker processes, each with a precompiled header of its own.

Workers are fresh interpreters at the end of a pipe, not ``multiprocessing`` processes: those import the caller's main
module again, which runs scripts without a main guard twice. A kernel travels to its worker as a name, the artifact
comes back in its form on disk; nothing is pickled. A worker that dies takes down no kernel but its own; one whose
parent dies ends, and removes what the parent cannot.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CompileError, GemmillError, InstallationError
from gemmill.library.files import told
from gemmill.runtime import interpreter
from gemmill.runtime.compile import limits, pch, temporary
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

MEMORY_BYTES = 512 << 20
"""Memory that a worker is reckoned to take: 242 MB were measured with NVRTC 12.9, and as much again in TMPDIR, which
may be memory too."""
_log = logging.getLogger(__name__)
_LAST_WORDS_SECONDS = 10
"""A worker whose end of the pipe has closed gets this long to print its traceback and to end by itself."""
_WORKER = "import sys; from gemmill.runtime.compile.worker import work; work(int(sys.argv[1]))"


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
) -> list[Outcome]:
    """Compile kernels in parallel.

    Args:
        configs: the kernels.
        jobs: worker processes; by default ``GEMMILL_JOBS`` or :func:`default_jobs`.
        store: where kernels are looked up first and kept; None compiles all and keeps none.
        on_done: called in this thread for each kernel as it finishes, in whatever order.

    Returns:
        An outcome for each config, in order. A kernel that fails, or whose worker dies, is an outcome with an error.

    Raises:
        ToolchainError: NVRTC or headers are missing or clash.
        ValueError: fewer than one worker process is asked for.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: at least 1 process must compile; None takes one for each processor")
    configs = list(configs)
    if not configs:
        return []
    from gemmill.runtime.compile.compiler import Compiler

    Compiler()  # what is missing is told here, once, rather than by every worker
    outcomes: dict[int, Outcome] = {}
    for index, outcome in _outcomes(configs, min(jobs or default_jobs(), len(configs)), store):
        outcomes[index] = outcome
        if on_done is not None:
            on_done(outcome)
    return [outcomes[index] for index in range(len(configs))]


def default_jobs() -> int:
    """Worker processes unless told otherwise: one for each processor that this process may keep busy, and no more than
    fit into the memory that is left to it."""
    if jobs := Settings.read().jobs:
        return jobs
    memory = limits.memory()
    return min(limits.processors(), max(1, memory // MEMORY_BYTES) if memory is not None else sys.maxsize)


class WorkerPool:
    """Processes that compile for as long as a program runs; :meth:`compile` keeps one busy, and threads share them.

    Args:
        jobs: processes at most; one is started when it is first needed.
        store: where kernels are looked up first and kept.
    """

    def __init__(self, jobs: int, store: Store) -> None:
        self._store = store
        self._stack = ExitStack()
        self._directory, self._headers = self._stack.enter_context(_directory(jobs))
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()

    def compile(self, config: GemmConfig, seconds: float) -> Outcome:
        """One kernel; a process that dies, or takes longer than so many seconds, is an outcome with an error."""
        try:
            worker = self._take()
        except (InstallationError, OSError) as error:
            why = told(error) if isinstance(error, OSError) else error
            failure = CompileError(f"{kernel_name(config)}: a process that compiles cannot be started: {why}")
            return Outcome(config, None, failure, False, 0.0, "")
        worker.begin(0, kernel_name(config))
        try:
            if not worker.connection.poll(seconds):
                worker.end()
                failure = CompileError(
                    f"{kernel_name(config)}: compiling took longer than {seconds:g} s, and was ended"
                )
                return Outcome(config, None, failure, False, time.perf_counter() - worker.start, "")
            reply, artifact = json.loads(worker.connection.recv_bytes()), worker.connection.recv_bytes()
        except (EOFError, OSError):
            if (status := worker.status()) == -signal.SIGBUS:  # TMPDIR is full of other things by now
                self._headers = 0
            return _died(config, status, time.perf_counter() - worker.start, len(self._busy))
        finally:
            with self._lock:
                self._busy.discard(worker)
                if not worker.connection.closed:
                    self._idle.append(worker)
        if reply["problem"]:
            self._store.report(reply["problem"])
        return _outcome(config, reply, artifact, time.perf_counter() - worker.start)

    def close(self) -> None:
        """End all processes, whatever they are doing, and remove what they have written beside the store."""
        with self._lock:
            for worker in (*self._idle, *self._busy):
                worker.process.kill()
        self._stack.close()

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                worker = self._idle.pop()
            else:
                headers = sum(worker.headers for worker in self._busy) < self._headers
                worker = _Worker(self._directory, headers, self._store)
            self._busy.add(worker)
            return worker


class _Worker:
    """A compiling process and the kernel it works on; OSError where it cannot be started."""

    def __init__(self, directory: Path | None, headers: bool, store: Store | None) -> None:
        self.headers = headers
        self.index = -1
        self.start = 0.0
        self.connection, theirs = Pipe()
        try:
            with theirs:
                # A group of its own: Ctrl-C reaches the parent alone, which then ends its workers.
                # TMPDIR: what a killed worker leaves, precompiled headers above all, goes when the parent removes it.
                self.process = subprocess.Popen(
                    interpreter.command(_WORKER, str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "TMPDIR": str(directory)} if directory else None,
                    process_group=0,
                )
        except BaseException:
            self.connection.close()
            raise
        settings = {
            "store": None if store is None else str(store.path),
            "max_bytes": None if store is None else store.max_bytes,
            "parent": os.getpid(),
            "directory": None if directory is None else str(directory),
            "headers": headers,
        }
        self._send(json.dumps(settings))

    def begin(self, index: int, name: str) -> None:
        """Hand over a kernel."""
        self.index, self.start = index, time.perf_counter()
        self._send(name)

    def status(self) -> int:
        """How the process ended, whose end of the pipe has closed: exit status, or the negative of a signal."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS_SECONDS)
        self.end()
        return self.process.returncode

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def _send(self, text: str) -> None:
        try:
            self.connection.send_bytes(text.encode())
        except OSError:  # it has died; the end of its pipe will tell
            return


def _outcomes(configs: list[GemmConfig], jobs: int, store: Store | None) -> Iterator[tuple[int, Outcome]]:
    """Each kernel's index and outcome, as they finish."""
    todo = deque(enumerate(configs))
    workers: dict[Connection, _Worker] = {}
    with _directory(jobs) as (directory, headers):
        try:
            while todo or workers:
                while todo and len(workers) < jobs:
                    try:
                        worker = _Worker(directory, sum(w.headers for w in workers.values()) < headers, store)
                    except (InstallationError, OSError) as error:  # limits, no interpreter: then fewer, or this one
                        why = told(error) if isinstance(error, OSError) else error
                        _log.warning("a process that compiles cannot be started: %s", why)
                        if jobs := len(workers):
                            break
                        yield from _here(todo, store)
                        return
                    workers[worker.connection] = worker
                    _begin(worker, todo)
                for ready in wait(list(workers)):
                    assert isinstance(ready, Connection)
                    worker = workers[ready]
                    config, seconds = configs[worker.index], time.perf_counter() - worker.start
                    try:
                        reply, artifact = json.loads(ready.recv_bytes()), ready.recv_bytes()
                    except (EOFError, OSError):
                        status = worker.status()
                        del workers[ready]
                        if status == -signal.SIGBUS and worker.headers:  # TMPDIR is full of other things by now
                            headers = 0
                            todo.appendleft((worker.index, config))
                        else:
                            yield worker.index, _died(config, status, seconds, len(workers) + 1)
                        continue
                    if store is not None and reply["problem"]:
                        store.report(reply["problem"])
                    yield worker.index, _outcome(config, reply, artifact, seconds)
                    if todo:
                        _begin(worker, todo)
                    else:
                        del workers[ready]
                        worker.end()
        finally:
            for worker in workers.values():
                worker.end()


def _begin(worker: _Worker, todo: deque[tuple[int, GemmConfig]]) -> None:
    index, config = todo.popleft()
    worker.begin(index, kernel_name(config))


@contextmanager
def _directory(jobs: int) -> Iterator[tuple[Path | None, int]]:
    """The folder in which workers have theirs, None if there can be none; how many have room there for headers."""
    temporary.sweep()
    try:
        made = temporary.TemporaryFolder("pool")
    except OSError as error:
        _log.warning("kernels compile without precompiled headers, which takes longer: %s", told(error))
        yield None, 0
        return
    try:
        room = pch.room_in(made.path)
        headers = min(jobs, room // pch.ROOM_BYTES)
        if headers < jobs:
            without = f"{jobs - headers} of {jobs} processes compile without precompiled headers, which takes longer"
            _log.warning("%s: %s", without, pch.no_room(room))
        yield made.path, headers
    finally:
        made.remove()


def _here(tasks: Iterable[tuple[int, GemmConfig]], store: Store | None) -> Iterator[tuple[int, Outcome]]:
    """Outcomes of kernels that this process compiles itself, one after the other."""
    from gemmill.runtime.compile.compiler import Compiler
    from gemmill.runtime.compile.worker import answer

    compiler = Compiler(store=store)
    for index, config in tasks:
        start = time.perf_counter()
        reply, artifact = answer(compiler, config, store)
        yield index, _outcome(config, reply, artifact, time.perf_counter() - start)


def _died(config: GemmConfig, status: int, seconds: float, jobs: int) -> Outcome:
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    why = ""
    if status == -signal.SIGKILL:
        why = (
            f": the system does that where memory runs out. {jobs} compiled at a time, of up to "
            f"{MEMORY_BYTES >> 20} MiB each; --jobs or GEMMILL_JOBS makes them fewer"
        )
    error = CompileError(
        f"{kernel_name(config)}: the process that compiled it died ({how}); other kernels went on{why}"
    )
    return Outcome(config, None, error, False, seconds, "")


def _outcome(config: GemmConfig, reply: dict[str, str], artifact: bytes, seconds: float) -> Outcome:
    if reply["error"]:
        return Outcome(config, None, CompileError(reply["error"]), False, seconds, reply["pch"])
    return Outcome(config, Artifact.from_bytes(artifact), None, not reply["pch"], seconds, reply["pch"])
