"""Compiles on other machines: the workers of a dask cluster, inside one trust zone, with certificates on both sides.

A dask worker has a process compile, as the server itself does, so that what dies or hangs there costs one kernel. What
comes back is checked as what a process of this machine compiled, and must have the key that this server computed: a
worker with another toolchain makes other kernels.
"""

from __future__ import annotations

import importlib
import time
from functools import cache
from typing import Any

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import CompileError, DeviceError
from gemmill.library.extras import install
from gemmill.profiler.sweep.certificates import refuse_open
from gemmill.runtime.compile.pool import Outcome, WorkerPool
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

_GRACE_SECONDS = 30.0
"""What a job may take beyond its compilation: to travel, and to wait for its turn at a worker."""


class ClusterPool:
    """The workers of a scheduler, in the place of a :class:`WorkerPool`.

    Args:
        scheduler: its address, ``tls://host:8786``; certificates are those of dask's settings.

    Raises:
        DeviceError: dask is missing, the address is one that anybody may talk to, or nobody answers.
    """

    def __init__(self, scheduler: str) -> None:
        refuse_open(scheduler)
        try:
            dask: Any = importlib.import_module("distributed")
        except ImportError as error:
            raise DeviceError(f"a cluster needs dask distributed ({error}); {install('cluster')}") from error
        try:
            self._client = dask.Client(scheduler, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:  # the last: there is no certificate
            raise DeviceError(f"no dask scheduler answers at {scheduler}: {error}") from error

    def compile(self, config: GemmConfig, seconds: float) -> Outcome:
        """As :meth:`WorkerPool.compile`."""
        name, start = kernel_name(config), time.perf_counter()
        try:
            # Never the result of a job before: the store knows what there is.
            future = self._client.submit(compiled, name, seconds, pure=False, retries=0)
            said, cached, pch, data = future.result(timeout=seconds + _GRACE_SECONDS)
            error = CompileError(said) if said else None
        except TimeoutError:
            future.cancel()
            error, data = CompileError(f"{name}: compiling on the cluster took too long, and was given up"), b""
        except Exception as failure:  # noqa: BLE001 (whatever becomes of a cluster costs one kernel)
            error, data = CompileError(f"{name}: the dask worker that compiled it died: {failure!r:.300}"), b""
        taken = time.perf_counter() - start
        if error is not None:
            return Outcome(config, None, error, False, taken, "")
        return Outcome(config, Artifact.from_bytes(data), None, cached, taken, pch)

    def close(self) -> None:
        """Leave the cluster, which goes on."""
        self._client.close()


def compiled(name: str, seconds: float) -> tuple[str, bool, str, bytes]:
    """What a dask worker does: error, whether its store had the kernel, what became of the header, the kernel."""
    outcome = _pool().compile(parse_name(name), seconds)
    data = b"" if outcome.artifact is None else outcome.artifact.to_bytes()
    return str(outcome.error or ""), outcome.cached, outcome.pch, data


@cache
def _pool() -> WorkerPool:
    """The processes of a dask worker, one for each of its threads, and the store of its user."""
    worker = importlib.import_module("distributed").get_worker()
    return WorkerPool(worker.state.nthreads, Store())
