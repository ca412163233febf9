"""Sources that clients send (``--accept-source``): a sandboxed process compiles each of them.

The server limits the output of the process (:mod:`gemmill.service.compiling.confined`), and does not trust it: the
kernel must match its config, and the key that this server computed.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CompileError, InstallationError, SettingError
from gemmill.library.files import make_private, os_error_text
from gemmill.library.input.strict_json import parse
from gemmill.runtime.compile.pool import Outcome
from gemmill.runtime.storage.artifact import MAX_BYTES, Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.verification import verify
from gemmill.runtime.workers import Worker, WorkerError, WorkerPool
from gemmill.service.compiling.confined import LOG_CHARACTERS, MEMORY_BYTES
from gemmill.service.compiling.resolver import KeyedKernel

SECONDS = 120
"""Time limit of a compilation, in wall time and in processor time; built-in kernels take 2 to 30 seconds."""
_MAX_REPLY_BYTES = MAX_BYTES + 8 * LOG_CHARACTERS
"""Maximum number of bytes read from the process."""
_ENVIRONMENT = ("GEMMILL_INCLUDE", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")
"""Environment variables that the process inherits, to find NVRTC and the headers."""


class SourceCompiler:
    """Compiles sources; each calling thread gets its own process.

    Args:
        store: holds the compiled kernels.
        folder: an empty folder, the working directory of the processes.
        seconds: time limit of each compilation.
    """

    def __init__(self, store: Store, folder: Path, seconds: int = SECONDS) -> None:
        self._store, self._folder, self._seconds = store, folder, seconds
        self._workers = WorkerPool(self._start)

    def check(self) -> None:
        """Raise SettingError if this machine does not support the sandbox."""
        try:
            make_private(self._folder)
        except OSError as error:
            raise SettingError(f"--accept-source: {os_error_text(error)}") from None
        try:
            self._run_worker("--accept-source", None)
        except CompileError as error:
            raise SettingError(f"{error}; start the server without --accept-source") from None

    def compile(self, kernel: KeyedKernel) -> Outcome:
        """Compile a kernel that has a source; if that fails, the outcome has an error."""
        start = time.perf_counter()
        try:
            artifact, cached = self._store.get_or_make(kernel.key, lambda: self._compile(kernel))
        except CompileError as error:
            return Outcome(kernel.config, None, error, False, time.perf_counter() - start, "")
        return Outcome(kernel.config, artifact, None, cached, time.perf_counter() - start, "")

    def close(self) -> None:
        """Kill all processes."""
        self._workers.close()

    def _compile(self, kernel: KeyedKernel) -> Artifact:
        data = self._run_worker(kernel.name, kernel)
        try:
            verify(artifact := Artifact.from_bytes(data, kernel.key))
        except ValueError as error:
            raise CompileError(f"{kernel.name}: {error}") from None
        return artifact

    def _run_worker(self, name: str, kernel: KeyedKernel | None) -> bytes:
        """Compile in a new process; returns the kernel, or no bytes without a kernel to compile (:meth:`check`)."""
        page = None if kernel is None else (kernel_name(kernel.config), kernel.source)
        job = json.dumps({"kernel": page, "seconds": self._seconds}).encode()
        try:
            with self._workers.worker() as worker:
                try:
                    reply, _, data = worker.call(name, job, self._seconds, _MAX_REPLY_BYTES).partition(b"\n")
                finally:
                    worker.kill()  # it is sandboxed, and cannot run another job
            error = parse(reply)["error"]
        except InstallationError as failure:
            error = f"cannot start a compile process: {failure}"
        except WorkerError as failure:
            error = f"the compile process {failure}; the limits are {self._seconds} s and {MEMORY_BYTES >> 20:,} MiB"
        except (KeyError, TypeError, ValueError):
            error = "the compile process sent an invalid answer"
        if error:
            raise CompileError(f"{name}: {str(error)[:LOG_CHARACTERS].removeprefix(f'{name}: ')}")
        return data

    def _start(self) -> Worker:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return Worker(
            "gemmill.service.compiling.confined", environment=environment, folder=self._folder, is_silent=True
        )
