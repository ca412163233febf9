"""Worker processes: new interpreters that each process one item at a time for this process.

Builds, sweeps, the service and its training use them. A worker can import this process's modules, but nothing from the
working directory. It is not a ``multiprocessing`` process, which would import the caller's main module again and so run
scripts without a main guard twice. Messages are bytes over a pair of sockets, each after its length. A worker that dies
or takes too long fails only its current item, which the error names. A worker whose parent dies exits. Workers share
this process's stdout and stderr, so that you see their tracebacks.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from gemmill.library.errors import InstallationError
from gemmill.library.files import os_error_text
from gemmill.runtime.interpreter import interpreter

MAX_MESSAGE_BYTES = 1 << 32
"""Most bytes of a message, unless its receiver sets a lower limit."""
_ENDING_SECONDS = 10.0
"""Time for a worker that has closed its socket to print its traceback and exit."""
_PAUSE_SECONDS = 0.2
_LENGTH = struct.Struct("<Q")
# -P: import nothing from the working directory, which may hold modules with the same names as the library's.
_BOOT = "import sys; n = int(sys.argv[1]) + 2; sys.path[:] = sys.argv[2:n]; del sys.argv[1:n]\n"
_BODY = """
import importlib
from gemmill.runtime.workers import Parent
module, descriptor, parent = sys.argv[1:]
importlib.import_module(module).serve(Parent(int(descriptor), int(parent)))
"""


class WorkerError(Exception):
    """A worker died, took too long or sent too much, and was stopped.

    Args:
        item: its current item.
        how: how it ended, such as ``died (SIGSEGV)``.
        status: its exit status, negative for a signal; None where this process stopped it.
    """

    def __init__(self, item: str, how: str, status: int | None = None) -> None:
        super().__init__(how)
        self.item, self.status = item, status


class Worker:
    """One worker process, from construction until :meth:`kill`. Only one thread may use it at a time.

    Args:
        module: the module whose ``serve(parent: Parent)`` it runs.
        environment: its environment; by default this process's.
        folder: its working directory; by default this process's.
        is_silent: whether to drop its output.

    Raises:
        InstallationError: there is no interpreter to start.
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        module: str,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        is_silent: bool = False,
    ) -> None:
        self.item = ""
        """Its current item."""
        arguments = command(_BODY)
        self._socket, child_socket = socket.socketpair()
        output = subprocess.DEVNULL if is_silent else None
        try:
            with child_socket:
                # A separate process group: Ctrl-C reaches only this process, which then stops its workers.
                self._process = subprocess.Popen(
                    [*arguments, module, str(child_socket.fileno()), str(os.getpid())],
                    pass_fds=[child_socket.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=folder,
                    env=environment,
                    process_group=0,
                )
        except BaseException:
            self._socket.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it was neither killed nor found dead."""
        return self._socket.fileno() >= 0

    def call(self, item: str, message: bytes, seconds: float, most: int = MAX_MESSAGE_BYTES) -> bytes:
        """Send a message about an item and return the answer, within a limit of seconds and bytes.

        Raises:
            WorkerError: no such answer came.
        """
        self.send(item, message, seconds)
        return self.receive(seconds, most)

    def send(self, item: str, message: bytes, seconds: float) -> None:
        """Send a message about an item. Where the worker does not accept it, :meth:`receive` reports the error."""
        self.item = item
        with suppress(OSError):
            self._socket.settimeout(seconds)
            self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, seconds: float | None, most: int = MAX_MESSAGE_BYTES) -> bytes:
        """Return the next message; WorkerError where none comes within ``seconds`` (None: no limit), or where it is too
        long."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            (length,) = _LENGTH.unpack(_received(self._socket, _LENGTH.size, end))
            if length <= most:
                return _received(self._socket, length, end)
        except TimeoutError:
            self.kill()
            raise WorkerError(self.item, f"took longer than {seconds:g} s and was stopped") from None
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_SECONDS)
            self.kill()
            status = self._process.returncode
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise WorkerError(self.item, f"died ({how})", status) from None
        self.kill()
        raise WorkerError(self.item, f"sent more than {most:,} bytes and was stopped")

    def kill(self) -> None:
        """Stop it immediately."""
        self.end()
        self._socket.close()

    def end(self) -> None:
        """Stop it like :meth:`kill`, from another thread than the one that uses it, which then sees it end."""
        self._process.kill()
        self._process.wait()


W = TypeVar("W", bound=Worker)


class WorkerPool(Generic[W]):
    """Workers that threads share: a thread has a worker for itself and then returns it.

    Args:
        start: starts a worker when none is idle.
    """

    def __init__(self, start: Callable[[], W]) -> None:
        self._start = start
        self._change = threading.Condition()
        self._idle: list[W] = []
        self.busy: set[W] = set()
        """Workers in use."""
        self.is_closed = False

    @contextmanager
    def worker(self) -> Iterator[W]:
        """Provide a worker for the block; a worker that is alive at its end is kept.

        Where the system cannot start more processes, this waits for a worker in use.

        Raises:
            InstallationError: none can be started and none is in use; or the pool is closed.
        """
        worker = self._take()
        try:
            yield worker
        finally:
            with self._change:
                self.busy.discard(worker)
                if worker.is_alive:
                    self._idle.append(worker)
                self._change.notify()

    def close(self) -> None:
        """Stop all workers immediately."""
        with self._change:
            self.is_closed = True
            self._change.notify_all()
            for worker in (*self._idle, *self.busy):
                worker.end()

    def _take(self) -> W:
        with self._change:
            while not self.is_closed:
                if self._idle:
                    worker = self._idle.pop()
                else:
                    try:
                        worker = self._start()
                    except (InstallationError, OSError) as error:
                        if self.busy:
                            self._change.wait()
                            continue
                        raise InstallationError(
                            os_error_text(error) if isinstance(error, OSError) else str(error)
                        ) from error
                self.busy.add(worker)
                return worker
        raise InstallationError("the worker pool is closed")


class Parent:
    """A worker's side of its socket.

    Args:
        descriptor: the socket.
        pid: the process that started this one.
    """

    def __init__(self, descriptor: int, pid: int) -> None:
        self._socket, self.pid = socket.socket(fileno=descriptor), pid

    def receive(self) -> bytes:
        """Return the next message; EOFError when the parent has closed its side."""
        try:
            (length,) = _LENGTH.unpack(_received(self._socket, _LENGTH.size, None))
            return _received(self._socket, length, None)
        except ConnectionError:
            raise EOFError from None

    def send(self, message: bytes) -> None:
        """Send a message; EOFError when the parent has closed its side."""
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
        except ConnectionError:
            raise EOFError from None

    def end_with(self, last: Callable[[], None] = lambda: None) -> None:
        """Make this process run ``last`` and exit once its parent has ended. Where no thread can be started to watch
        the parent, it exits when its work is done."""

        def watch() -> None:
            while os.getppid() == self.pid:
                time.sleep(_PAUSE_SECONDS)
            last()
            os._exit(1)

        with suppress(RuntimeError):
            threading.Thread(target=watch, daemon=True).start()


def command(code: str, *arguments: str) -> list[str]:
    """Return the command line of a new interpreter that runs some code, with the arguments from ``sys.argv[1]`` on.

    Raises:
        InstallationError: there is no interpreter to start.
    """
    executable = interpreter()
    root = str(Path(__file__).parents[2])
    paths = [os.path.abspath(path) for path in sys.path if path]
    if root not in paths:
        paths.append(root)
    return [executable, "-P", "-c", _BOOT + code, str(len(paths)), *paths, *arguments]


def _received(connection: socket.socket, size: int, end: float | None) -> bytes:
    """Receive ``size`` bytes; TimeoutError where they do not arrive by ``end`` (monotonic clock), EOFError where the
    other side closes first."""
    data = bytearray()
    while len(data) < size:
        connection.settimeout(None if end is None else max(1e-3, end - time.monotonic()))
        if not (piece := connection.recv(min(size - len(data), 1 << 20))):
            raise EOFError
        data += piece
    return bytes(data)
