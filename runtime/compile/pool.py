"""Compiles many kernels in worker processes, each with a precompiled header of its own.

Workers are fresh interpreters at the end of a pipe, not ``multiprocessing`` processes: those import the caller's main
module again, which runs scripts without a main guard twice. A kernel travels to its worker as a name, the artifact
comes back in its form on disk; nothing is pickled. A worker that dies or hangs takes down no kernel but its own, which
another tries once more; one whose parent dies ends, and removes what the parent cannot.
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
from dataclasses import dataclass, replace
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
HANGS_SECONDS = 1800.0
"""A worker of :func:`compile_many` that takes so long over a kernel, most of which take a core 2 to 30, hangs."""
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
    """Compile kernels in parallel.

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
    from gemmill.runtime.compile.compiler import Compiler

    Compiler()  # what is missing is told here, once, rather than by every worker
    outcomes: dict[int, Outcome] = {}
    for index, outcome in _outcomes(configs, min(jobs or default_jobs(), len(configs)), store, seconds):
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
        self._closed = False

    def compile(self, config: GemmConfig, seconds: float) -> Outcome:
        """One kernel; where a process dies of it, or takes longer than so many seconds, another tries once more."""
        first = self.attempt(config, seconds)
        if not first.lost or self._closed:
            return first
        _log.warning("%s; it is tried once more", first.error)
        return after(first, self.attempt(config, seconds))

    def attempt(self, config: GemmConfig, seconds: float) -> Outcome:
        """One kernel, tried once."""
        try:
            worker = self._take()
        except (InstallationError, OSError) as error:
            why = told(error) if isinstance(error, OSError) else error
            return _lost(config, f"a process that compiles cannot be started: {why}", time.perf_counter())
        worker.begin(0, kernel_name(config))
        try:
            return worker.outcome(config, seconds, len(self._busy))
        finally:
            with self._lock:
                self._busy.discard(worker)
                if worker.lacked_room:
                    self._headers = 0
                if not worker.connection.closed:
                    self._idle.append(worker)

    def close(self) -> None:
        """End all processes, whatever they are doing, and remove what they have written beside the store."""
        with self._lock:
            self._closed = True
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
        self.headers, self._store = headers, store
        self.lacked_room = False
        """Whether it died as TMPDIR, which had room for its header, is full of other things by now."""
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

    def outcome(self, config: GemmConfig, seconds: float, jobs: int) -> Outcome:
        """What becomes of the kernel that was handed over, which may take so many seconds, while so many compile. The
        connection of a process that died or hung is closed then."""
        try:
            if not self.connection.poll(max(0.0, self.start + seconds - time.perf_counter())):
                self.end()
                return _lost(config, f"compiling took longer than {seconds:g} s, and was ended", self.start)
            reply, data = json.loads(self.connection.recv_bytes()), self.connection.recv_bytes()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAST_WORDS_SECONDS)
            self.end()
            self.lacked_room = self.process.returncode == -signal.SIGBUS
            return _lost(config, _how_it_died(self.process.returncode, jobs), self.start)
        if self._store is not None and reply["problem"]:
            self._store.report(reply["problem"])
        return _outcome(config, reply, data, time.perf_counter() - self.start)

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


def after(first: Outcome, second: Outcome) -> Outcome:
    """What became of a kernel at the second attempt, and if that was lost as well, of the first."""
    if not second.lost:
        return second
    said = [str(outcome.error).removeprefix(f"{outcome.name}: ") for outcome in (first, second)]
    what = f"each time {said[0]}" if said[0] == said[1] else f"{said[0]}; then {said[1]}"
    return replace(second, error=CompileError(f"{first.name}: tried twice: {what}"))


def _outcomes(
    configs: list[GemmConfig], jobs: int, store: Store | None, seconds: float
) -> Iterator[tuple[int, Outcome]]:
    """Each kernel's index and outcome, as they finish."""
    todo = deque(enumerate(configs))
    lost: dict[int, Outcome] = {}
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
                first = min(worker.start for worker in workers.values())
                answering = wait(list(workers), max(0.0, first + seconds - time.perf_counter()))
                now = time.perf_counter()
                for worker in [w for c, w in workers.items() if c in answering or now - w.start >= seconds]:
                    index, before = worker.index, lost.get(worker.index)
                    outcome = worker.outcome(configs[index], seconds, len(workers))
                    if outcome.lost and before is None:
                        lost[index] = outcome
                        todo.append((index, outcome.config))
                    else:
                        yield index, after(before, outcome) if before else outcome
                    headers = 0 if worker.lacked_room else headers
                    if todo and not worker.connection.closed:
                        _begin(worker, todo)
                    else:
                        del workers[worker.connection]
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


def _how_it_died(status: int, jobs: int) -> str:
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    why = ""
    if status == -signal.SIGKILL:
        why = (
            f": the system does that where memory runs out. {jobs} compiled at a time, of up to "
            f"{MEMORY_BYTES >> 20} MiB each; --jobs or GEMMILL_JOBS makes them fewer"
        )
    return f"the process that compiled it died ({how}); other kernels went on{why}"


def _lost(config: GemmConfig, says: str, start: float) -> Outcome:
    error = CompileError(f"{kernel_name(config)}: {says}")
    return Outcome(config, None, error, False, time.perf_counter() - start, "", lost=True)


def _outcome(config: GemmConfig, reply: dict[str, str], artifact: bytes, seconds: float) -> Outcome:
    if reply["error"]:
        error = CompileError(reply["error"])
        return Outcome(config, None, error, False, seconds, reply["pch"], lost=bool(reply["lost"]))
    return Outcome(config, Artifact.from_bytes(artifact), None, not reply["pch"], seconds, reply["pch"])
