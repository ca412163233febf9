"""Worker processes: fresh interpreters that work for this process, each on one item at a time.

Builds, sweeps, the service and its training use them alike. A worker has this process's modules and none of the working
directory's. It is no ``multiprocessing`` process: that imports the caller's main module again, which runs scripts
without a main guard twice. Messages are bytes over a pair of sockets, a length before each. A worker that dies or takes
too long costs the item that it worked on, which the error names; one whose parent dies ends. Its stdout and stderr are
this process's, so that tracebacks are seen.
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

MAX_MESSAGE_BYTES = 1 << 32
"""Most bytes of a message unless its receiver takes fewer."""
_ENDING_SECONDS = 10.0
"""A worker that has closed its socket gets this long to print its traceback and to end by itself."""
_PAUSE_SECONDS = 0.2
_LENGTH = struct.Struct("<Q")
# -P: nothing is imported from the working directory, which may hold modules of the same names as the library's.
_BOOT = "import sys; n = int(sys.argv[1]) + 2; sys.path[:] = sys.argv[2:n]; del sys.argv[1:n]\n"
_BODY = """
import importlib
from gemmill.runtime.workers import Parent
module, descriptor, parent = sys.argv[1:]
importlib.import_module(module).serve(Parent(int(descriptor), int(parent)))
"""


class WorkerError(Exception):
    """A worker died, took too long or sent too much, and has been ended.

    Args:
        item: what it worked on.
        how: how it ended, such as ``died (SIGSEGV)``.
        status: its exit status, negative for a signal; None where this process ended it.
    """

    def __init__(self, item: str, how: str, status: int | None = None) -> None:
        super().__init__(how)
        self.item, self.status = item, status


class Worker:
    """One worker process. Starts with the object, ends with :meth:`kill`; no two threads use it at the same time.

    Args:
        module: the module whose ``serve(parent: Parent)`` is its body.
        environment: its environment; by default this process's.
        folder: its working directory; by default this process's.
        is_silent: whether what it prints is dropped.

    Raises:
        InstallationError: there is no interpreter to start.
        OSError: no process can be started.
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
        """What it works on."""
        arguments = command(_BODY)
        self._socket, theirs = socket.socketpair()
        output = subprocess.DEVNULL if is_silent else None
        try:
            with theirs:
                # A group of its own: Ctrl-C reaches this process alone, which then ends its workers.
                self._process = subprocess.Popen(
                    [*arguments, module, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()],
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
        """The answer to a message about an item, which may take so many seconds and have so many bytes.

        Raises:
            WorkerError: no such answer came.
        """
        self.send(item, message, seconds)
        return self.receive(seconds, most)

    def send(self, item: str, message: bytes, seconds: float) -> None:
        """Send a message about an item; a worker that does not take it gives no answer to it either."""
        self.item = item
        with suppress(OSError):
            self._socket.settimeout(seconds)
            self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, seconds: float | None, most: int = MAX_MESSAGE_BYTES) -> bytes:
        """The next message; WorkerError where none comes in so many seconds (None: ever), or one of more bytes."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            (length,) = _LENGTH.unpack(_received(self._socket, _LENGTH.size, end))
            if length <= most:
                return _received(self._socket, length, end)
        except TimeoutError:
            self.kill()
            raise WorkerError(self.item, f"took longer than {seconds:g} s, and was ended") from None
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_SECONDS)
            self.kill()
            status = self._process.returncode
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise WorkerError(self.item, f"died ({how})", status) from None
        self.kill()
        raise WorkerError(self.item, f"sent more than {most:,} bytes, and was ended")

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self.end()
        self._socket.close()

    def end(self) -> None:
        """End it as :meth:`kill` does, for another thread than the one that uses it, which then sees the end."""
        self._process.kill()
        self._process.wait()


W = TypeVar("W", bound=Worker)


class WorkerPool(Generic[W]):
    """Workers that threads share: each has one for itself while it works, and leaves it to the next.

    Args:
        start: starts a worker when there is none to spare.
    """

    def __init__(self, start: Callable[[], W]) -> None:
        self._start = start
        self._change = threading.Condition()
        self._idle: list[W] = []
        self.busy: set[W] = set()
        """Those at work."""
        self.is_closed = False

    @contextmanager
    def worker(self) -> Iterator[W]:
        """A worker for the block; one that lives at its end is kept.

        Where the system starts no more processes, this waits for one that is at work.

        Raises:
            InstallationError: none can be started, and none is at work; or the pool is closed.
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
        """End all workers, whatever they are doing."""
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
        raise InstallationError("its workers have been ended")


class Parent:
    """A worker's side of its socket.

    Args:
        descriptor: the socket.
        pid: the process that started this one.
    """

    def __init__(self, descriptor: int, pid: int) -> None:
        self._socket, self.pid = socket.socket(fileno=descriptor), pid

    def receive(self) -> bytes:
        """The next message; EOFError when the parent has closed its side."""
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
        """Have this process end, and do something last, once its parent has ended in whatever way; where no thread can
        be started to see that, it ends when its work does."""

        def watch() -> None:
            while os.getppid() == self.pid:
                time.sleep(_PAUSE_SECONDS)
            last()
            os._exit(1)

        with suppress(RuntimeError):
            threading.Thread(target=watch, daemon=True).start()


def command(code: str, *arguments: str) -> list[str]:
    """The command line of a fresh interpreter that runs some code, which finds the arguments from ``sys.argv[1]`` on.

    Raises:
        InstallationError: this process is a frozen program, or an interpreter inside another, and has none to start.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        what = f"{sys.executable} is a frozen program" if sys.executable else "sys.executable is empty"
        raise InstallationError(
            f"compiling many kernels, and measuring, start Python interpreters, and there is none to start: {what}. "
            "Compile with `gemmill build` or `gemmill pack` where Python is installed, or one kernel at a time with "
            "Registry.get, which compiles in this process"
        )
    root = str(Path(__file__).parents[2])
    paths = [os.path.abspath(path) for path in sys.path if path]
    if root not in paths:
        paths.append(root)
    return [sys.executable, "-P", "-c", _BOOT + code, str(len(paths)), *paths, *arguments]


def _received(connection: socket.socket, size: int, end: float | None) -> bytes:
    """So many bytes; TimeoutError where they do not come by ``end``, of the monotonic clock, EOFError where the other
    side closes before."""
    data = bytearray()
    while len(data) < size:
        connection.settimeout(None if end is None else max(1e-3, end - time.monotonic()))
        if not (piece := connection.recv(min(size - len(data), 1 << 20))):
            raise EOFError
        data += piece
    return bytes(data)
