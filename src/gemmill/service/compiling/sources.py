"""Sources that clients send (``--accept-source``): each compiled by a process that can do nothing else.

What the process (:mod:`gemmill.service.compiling.confined`) says is bounded, and believed as little as an upload: the
kernel must be what its config means, under the key that this server computed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CompileError, SettingError
from gemmill.library.files import make_private, told
from gemmill.library.input.strict_json import parse
from gemmill.runtime import interpreter
from gemmill.runtime.compile.pool import Outcome
from gemmill.runtime.storage.artifact import MAX_BYTES, Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.verify import verify
from gemmill.service.compiling.confined import LOG_CHARACTERS, MEMORY_BYTES
from gemmill.service.compiling.resolve import Keyed

SECONDS = 120
"""What a compilation may take, by the clock and of a processor; those that ship take 2 to 30."""
_MOST = MAX_BYTES + 8 * LOG_CHARACTERS
"""Most bytes that are read from the process."""
_PROCESS = "from gemmill.service.compiling.confined import main; main()"
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
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def check(self) -> None:
        """Refuse to go on, with SettingError, where processes cannot be confined here."""
        try:
            make_private(self._folder)
        except OSError as error:
            raise SettingError(f"--accept-source: {told(error)}") from None
        try:
            self._said("--accept-source", None)
        except CompileError as error:
            raise SettingError(f"{error}; no source can be accepted here") from None

    def compile(self, kernel: Keyed) -> Outcome:
        """A kernel that has a source; whatever is wrong with it is an outcome with an error."""
        start = time.perf_counter()
        try:
            artifact, cached = self._store.get_or_make(kernel.key, lambda: self._made(kernel))
        except CompileError as error:
            return Outcome(kernel.config, None, error, False, time.perf_counter() - start, "")
        return Outcome(kernel.config, artifact, None, cached, time.perf_counter() - start, "")

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _made(self, kernel: Keyed) -> Artifact:
        data = self._said(kernel.name, kernel)
        try:
            artifact = Artifact.from_bytes(data)
            if artifact.key != kernel.key:
                raise ValueError(f"holds {artifact.name}, made otherwise than its key says")
            verify(artifact)
        except ValueError as error:
            raise CompileError(f"{kernel.name}: {error}") from None
        return artifact

    def _said(self, name: str, kernel: Keyed | None) -> bytes:
        """What a process has made of a source; nothing where there is none. CompileError says what became of it."""
        sent = None if kernel is None else (kernel_name(kernel.config), kernel.source)
        job = {"kernel": sent, "seconds": self._seconds, "parent": os.getpid()}
        try:
            status, said = self._output(json.dumps(job).encode())
            reply, _, data = said.partition(b"\n")
            error = parse(reply)["error"] if status == 0 and len(said) <= _MOST else self._ended(status, len(said))
        except OSError as failure:
            error = f"a process that compiles it cannot be started: {told(failure)}"
        except (KeyError, TypeError, ValueError):
            error = "the process that compiled it said nothing that can be read"
        if error:
            raise CompileError(f"{name}: {str(error)[:LOG_CHARACTERS].removeprefix(f'{name}: ')}")
        return data

    def _output(self, job: bytes) -> tuple[int, bytes]:
        """Status of a process, and the bytes that it wrote, as far as they may be."""
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = subprocess.Popen(
            interpreter.command(_PROCESS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env=environment,
            process_group=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(self._seconds, process.kill)
        with self._lock:
            self._running.add(process)
            if self._closed:
                process.kill()
        try:
            clock.start()
            with suppress(BrokenPipeError):
                process.stdin.write(job)
                process.stdin.close()
            said = process.stdout.read(_MOST + 1)
            if len(said) > _MOST:
                process.kill()
            return process.wait(), said
        finally:
            clock.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
            with self._lock:
                self._running.discard(process)

    def _ended(self, status: int, size: int) -> str:
        if size > _MOST:
            return f"what was made of it has more than {_MOST:,} bytes"
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return (
            f"the process that compiled it was ended ({how}): it may take {self._seconds} s and "
            f"{MEMORY_BYTES >> 20:,} MiB"
        )
