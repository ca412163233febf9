"""Sources that clients send (``--accept-source``): each compiled by a process that can do nothing else.

What the process (:mod:`gemmill.service.compiling.confined`) says is bounded, and believed as little as an upload: the
kernel must be what its config means, under the key that this server computed.
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
"""What a compilation may take, by the clock and of a processor; those that ship take 2 to 30."""
_MAX_REPLY_BYTES = MAX_BYTES + 8 * LOG_CHARACTERS
"""Most bytes that are read from the process."""
_ENVIRONMENT = ("GEMMILL_INCLUDE", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")
"""What it has of this process's: where NVRTC and headers are."""


class SourceCompiler:
    """Compiles sources, one in each thread that asks.

    Args:
        store: where kernels are looked up first and kept.
        folder: an empty one that the processes are in.
        seconds: what each may take.
    """

    def __init__(self, store: Store, folder: Path, seconds: int = SECONDS) -> None:
        self._store, self._folder, self._seconds = store, folder, seconds
        self._workers = WorkerPool(self._start)

    def check(self) -> None:
        """Refuse to go on, with SettingError, where processes cannot be confined here."""
        try:
            make_private(self._folder)
        except OSError as error:
            raise SettingError(f"--accept-source: {os_error_text(error)}") from None
        try:
            self._run_worker("--accept-source", None)
        except CompileError as error:
            raise SettingError(f"{error}; no source can be accepted here") from None

    def compile(self, kernel: KeyedKernel) -> Outcome:
        """A kernel that has a source; whatever is wrong with it is an outcome with an error."""
        start = time.perf_counter()
        try:
            artifact, cached = self._store.get_or_make(kernel.key, lambda: self._compile(kernel))
        except CompileError as error:
            return Outcome(kernel.config, None, error, False, time.perf_counter() - start, "")
        return Outcome(kernel.config, artifact, None, cached, time.perf_counter() - start, "")

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        self._workers.close()

    def _compile(self, kernel: KeyedKernel) -> Artifact:
        data = self._run_worker(kernel.name, kernel)
        try:
            verify(artifact := Artifact.from_bytes(data, kernel.key))
        except ValueError as error:
            raise CompileError(f"{kernel.name}: {error}") from None
        return artifact

    def _run_worker(self, name: str, kernel: KeyedKernel | None) -> bytes:
        """What a process has made of a source; nothing where there is none. CompileError says what became of it."""
        page = None if kernel is None else (kernel_name(kernel.config), kernel.source)
        job = json.dumps({"kernel": page, "seconds": self._seconds}).encode()
        try:
            with self._workers.worker() as worker:
                try:
                    reply, _, data = worker.call(name, job, self._seconds, _MAX_REPLY_BYTES).partition(b"\n")
                finally:
                    worker.kill()  # it has given up its rights, and takes no other
            error = parse(reply)["error"]
        except InstallationError as failure:
            error = f"a process that compiles it cannot be started: {failure}"
        except WorkerError as failure:
            error = (
                f"the process that compiled it {failure}: it may take {self._seconds} s and {MEMORY_BYTES >> 20:,} MiB"
            )
        except (KeyError, TypeError, ValueError):
            error = "the answer of the process that compiled it cannot be read"
        if error:
            raise CompileError(f"{name}: {str(error)[:LOG_CHARACTERS].removeprefix(f'{name}: ')}")
        return data

    def _start(self) -> Worker:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return Worker(
            "gemmill.service.compiling.confined", environment=environment, folder=self._folder, is_silent=True
        )
