"""Compiles many kernels in worker processes, each with a precompiled header of its own.

Workers are fresh interpreters at the end of a pipe, not ``multiprocessing`` processes: those import the caller's main
module again, which runs scripts without a main guard twice. A kernel travels to its worker as a name, the artifact
comes back in its form on disk; nothing is pickled. A worker that dies takes down no kernel but its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import CompileError, GemmillError
from gemmill.runtime.compile import pch
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

if TYPE_CHECKING:
    from gemmill.runtime.compile.compiler import Compiler

_LAST_WORDS_SECONDS = 10
"""A worker whose end of the pipe has closed gets this long to print its traceback and to end by itself."""
_WORKER = (
    "import sys; sys.path[:] = sys.argv[2:]; from gemmill.runtime.compile.pool import work; work(int(sys.argv[1]))"
)


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
        jobs: worker processes; by default ``GEMMILL_JOBS`` or one for each processor this process may use.
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
    """Worker processes unless told otherwise."""
    return Settings.read().jobs or len(os.sched_getaffinity(0))


class _Worker:
    """A compiling process and the kernel it works on."""

    def __init__(self, directory: str, store: Store | None) -> None:
        self.connection, theirs = Pipe()
        self.index = -1
        self.start = 0.0
        with theirs:
            # A group of its own: Ctrl-C reaches the parent alone, which then ends its workers.
            # TMPDIR: what a killed worker leaves, precompiled headers above all, goes when the parent removes it.
            self.process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": directory},
                process_group=0,
            )
        settings = {"store": None} if store is None else {"store": str(store.path), "max_bytes": store.max_bytes}
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
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def _send(self, text: str) -> None:
        try:
            self.connection.send_bytes(text.encode())
        except OSError:  # it has died; the end of its pipe will tell
            return


def _outcomes(configs: list[GemmConfig], jobs: int, store: Store | None) -> Iterator[tuple[int, Outcome]]:
    """Each kernel's index and outcome, as they finish."""
    todo = iter(enumerate(configs))
    workers: dict[Connection, _Worker] = {}

    def start(directory: str) -> None:
        if (task := next(todo, None)) is not None:
            worker = _Worker(directory, store)
            workers[worker.connection] = worker
            worker.begin(task[0], kernel_name(task[1]))

    pch.sweep()
    with (
        tempfile.TemporaryDirectory(prefix=pch.POOL_PREFIX, ignore_cleanup_errors=True) as directory,
        FileLock(Path(directory) / "lock"),
    ):
        try:
            for _ in range(jobs):
                start(directory)
            while workers:
                for ready in wait(list(workers)):
                    assert isinstance(ready, Connection)
                    worker = workers[ready]
                    config, seconds = configs[worker.index], time.perf_counter() - worker.start
                    try:
                        reply, artifact = json.loads(ready.recv_bytes()), ready.recv_bytes()
                    except (EOFError, OSError):
                        status = worker.status()
                        del workers[ready]
                        yield worker.index, _died(config, status, seconds)
                        start(directory)
                        continue
                    if store is not None and reply["problem"]:
                        store.report(reply["problem"])
                    yield worker.index, _outcome(config, reply, artifact, seconds)
                    if (task := next(todo, None)) is not None:
                        worker.begin(task[0], kernel_name(task[1]))
                    else:
                        worker.end()
                        del workers[ready]
        finally:
            for worker in workers.values():
                worker.end()


def _died(config: GemmConfig, status: int, seconds: float) -> Outcome:
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    error = CompileError(f"{kernel_name(config)}: the process that compiled it died ({how}); other kernels went on")
    return Outcome(config, None, error, False, seconds, "")


def _outcome(config: GemmConfig, reply: dict[str, str], artifact: bytes, seconds: float) -> Outcome:
    if reply["error"]:
        return Outcome(config, None, CompileError(reply["error"]), False, seconds, reply["pch"])
    return Outcome(config, Artifact.from_bytes(artifact), None, not reply["pch"], seconds, reply["pch"])


def work(descriptor: int) -> None:
    """Body of a worker: takes kernel names from a pipe and answers with artifacts until the pipe ends."""
    from gemmill.runtime.compile.compiler import Compiler

    warnings.simplefilter("ignore")  # the parent warns, once for all workers
    with Connection(descriptor) as connection, suppress(EOFError, OSError):  # the parent has ended: so does this
        settings = json.loads(connection.recv_bytes())
        store = None if settings["store"] is None else Store(Path(settings["store"]), settings["max_bytes"])
        compiler = Compiler(store=store)
        while True:
            config = parse_name(connection.recv_bytes().decode())
            compiler.stats = None
            error, data = "", b""
            try:
                data = _compiled(compiler, config, store).to_bytes()
            except GemmillError as failure:
                error = str(failure)
            except OSError as failure:  # a full temporary directory, say
                error = f"{kernel_name(config)}: {failure}"
            reply = {
                "error": error,
                "pch": compiler.stats.pch if compiler.stats else "",
                "problem": (store.problem if store else None) or "",
            }
            connection.send_bytes(json.dumps(reply).encode())
            connection.send_bytes(data)


def _compiled(compiler: Compiler, config: GemmConfig, store: Store | None) -> Artifact:
    """One kernel, from the store if it is there."""
    from gemmill.emitters.emit import emit

    source = emit(config)
    if store is None:
        return compiler.compile(source, config)
    artifact, _ = store.get_or_make(compiler.key(source, config), lambda: compiler.compile(source, config))
    return artifact
