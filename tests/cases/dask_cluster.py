"""A dask cluster of real processes on this machine, all of which, and this one, have one certificate."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed.security import Security

_TLS = "DASK_DISTRIBUTED__COMM__TLS__"


class DaskCluster:
    """A scheduler, and workers that are started one by one; :func:`dask_cluster` makes and ends it.

    Args:
        folder: of logs, stores of workers and the scheduler's file.
        environ: with the certificate.
        stack: ends what was started.
    """

    def __init__(self, folder: Path, environ: dict[str, str], stack: ExitStack) -> None:
        self._folder, self.environ, self._stack = folder, environ, stack
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"tls://127.0.0.1:{self._port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start the scheduler, at the address that it always has."""
        file = self._folder / "scheduler.json"
        file.unlink(missing_ok=True)
        options = ("--host", "127.0.0.1", "--protocol", "tls://", "--port", str(self._port))
        self.scheduler = self._run("scheduler", *options, "--scheduler-file", str(file))
        while not file.exists() or not file.read_text():
            assert self.scheduler.poll() is None
            time.sleep(0.05)
        assert json.loads(file.read_text())["address"] == self.address

    def worker(self, *options: str, before: tuple[str, ...] = (), **environ: str) -> subprocess.Popen[bytes]:
        """Start a worker of one thread, with a store of its own; ``before`` is what the command line begins with."""
        store = {"GEMMILL_STORE": str(self._folder / f"store-{len(self.workers)}")}
        options = (self.address, "--nthreads", "1", "--local-directory", str(self._folder), *options)
        self.workers.append(self._run("worker", *options, before=before, **store | environ))
        return self.workers[-1]

    def _run(self, *arguments: str, before: tuple[str, ...] = (), **environ: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{arguments[0]}.log").open("ab") as log:
            started = self._stack.enter_context(
                subprocess.Popen(
                    [*before, sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
                    env={**os.environ, **self.environ, **environ},
                    stderr=log,
                )
            )
        self._stack.callback(started.terminate)
        return started


def client_settings(environ: dict[str, str]) -> dict[str, object]:
    """Dask's settings of a client with the certificate of a worker's environment."""
    names = {"ca-file": "CA_FILE", "client.cert": "WORKER__CERT", "client.key": "WORKER__KEY"}
    paths = {f"distributed.comm.tls.{setting}": environ[f"{_TLS}{name}"] for setting, name in names.items()}
    return {**paths, "distributed.comm.require-encryption": True}


@contextmanager
def own_certificate() -> Iterator[tuple[Any, dict[str, str]]]:
    """A certificate of its own authority: dask's ``Security`` with it, and the environment of workers that have it."""
    security: Any = Security.temporary()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="gemmill-tls-") as folder:
        files = {}
        for name, text in (("ca_file", security.tls_ca_file), ("worker__key", security.tls_worker_key)):
            path = Path(folder) / name
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(text)
            files[name] = str(path)
        files["worker__cert"] = files["ca_file"]  # it is its own authority
        environ = {f"{_TLS}{name.upper()}": path for name, path in files.items()}
        yield security, environ | {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}


@contextmanager
def dask_cluster(folder: Path) -> Iterator[DaskCluster]:
    """A scheduler; this process is a client, by dask's settings, and so are those that it starts."""
    with ExitStack() as stack:
        _, worker = stack.enter_context(own_certificate())
        roles = {
            name.replace("WORKER", role): path
            for name, path in worker.items()
            for role in ("WORKER", "SCHEDULER", "CLIENT")
        }
        stack.enter_context(dask.config.set(client_settings(worker)))
        yield DaskCluster(folder, roles, stack)
