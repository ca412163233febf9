"""The sweep's side of its worker: starts it, hands it units, notices when it dies or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType

from gemmill.library.errors import DeviceError
from gemmill.profiler.measure.messages import Fault, Machine, Options, Refusal, Report, Running, Unit
from gemmill.runtime import interpreter

START_SECONDS = 120.0
"""A worker that has not started after so long hangs: importing PyTorch takes a tenth."""
ENDING_SECONDS = 5.0
"""A worker that has closed its pipe ends, or is ended after so long."""
SILENCE_SECONDS = 120.0
"""A kernel that runs for so long hangs."""

# Like compiling workers, a fresh interpreter: multiprocessing would run the caller's main module again. While a kernel
# hangs nobody reads the pipe, so a thread looks whether the sweep is still there: the GPU must not stay occupied.
_COMMAND = """
import importlib, sys
from gemmill.runtime.interpreter import end_with
parent, module, descriptor = sys.argv[1:]
end_with(int(parent))
importlib.import_module(module).serve(int(descriptor))
"""


class WorkerError(Exception):
    """The worker died or hangs, and was ended."""

    def __init__(self, kernel: str, says: str) -> None:
        super().__init__(says)
        self.kernel = kernel
        """Name of the kernel that was running; empty if none was."""


class WorkerProcess:
    """A worker, restarted when it is needed again after a crash. Use as a context manager: it ends with the block.

    Args:
        options: how thoroughly it measures.
        silence_seconds: how long a kernel may run.
        module: the module whose ``serve`` is its body.
    """

    def __init__(
        self,
        options: Options,
        silence_seconds: float = SILENCE_SECONDS,
        module: str = "gemmill.profiler.measure.worker",
    ) -> None:
        self.machine: Machine
        """What it measures on; there once it was started."""
        self._options = options
        self._silence_seconds = silence_seconds
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._kernel = ""

    def start(self) -> Machine:
        """Start the worker.

        Raises:
            DeviceError: it cannot measure anything here.
        """
        self._connection, theirs = Pipe()
        with theirs:
            # A group of its own: Ctrl-C reaches the sweep alone, which then ends the worker.
            self._process = subprocess.Popen(
                interpreter.command(_COMMAND, str(os.getpid()), self._module, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        try:
            answer = self._ask(self._options, START_SECONDS)
        except WorkerError as error:
            raise DeviceError(f"the measuring process did not start: {error}") from None
        if isinstance(answer, Machine):
            self.machine = answer
            return answer
        self.stop()
        raise DeviceError(answer.says if isinstance(answer, Refusal | Fault) else f"unexpected answer: {answer}")

    def measure(self, unit: Unit) -> Report:
        """Have a unit measured.

        Raises:
            WorkerError: the worker died, hangs, or cannot go on; the next call starts another.
            DeviceError: another worker cannot be started.
        """
        if self._process is None:
            self.start()
        answer = self._ask(unit, self._silence_seconds)
        if isinstance(answer, Report):
            return answer
        self.stop()
        raise WorkerError(self._kernel, answer.says if isinstance(answer, Refusal | Fault) else f"answered {answer}")

    def stop(self) -> None:
        """Kill the worker, whatever it is doing."""
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None

    def _ask(self, request: Options | Unit, seconds: float) -> Machine | Report | Refusal | Fault:
        """Send a request; the answer to it. Each word before the answer may take ``seconds``."""
        assert self._process is not None
        assert self._connection is not None
        self._kernel = ""
        try:
            self._connection.send(request)
            while self._connection.poll(seconds):
                message: Running | Machine | Report | Refusal | Fault = self._connection.recv()
                if not isinstance(message, Running):
                    return message
                self._kernel = message.kernel
        except (EOFError, OSError):
            try:
                status = self._process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:  # it has closed its pipe, and does not end
                self._process.kill()
                status = self._process.wait()
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            self.stop()
            raise WorkerError(self._kernel, f"the measuring process died ({how})") from None
        self.stop()
        raise WorkerError(self._kernel, f"no sign of life for {seconds:.0f} s: it hangs")

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
