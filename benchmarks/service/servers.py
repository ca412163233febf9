"""What the benchmarks of the service share: servers in processes of their own, on the loopback interface alone."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parents[2] / "src"
TOKEN = "secret-of-the-benchmark"


class Server(NamedTuple):
    """A server that runs."""

    port: int
    process: subprocess.Popen[str]

    def cpu_seconds(self) -> float:
        """CPU seconds of the process and of children that it has waited for."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(command: list[str], log: Path, environ: Mapping[str, str] = os.environ) -> Iterator[Server]:
    """A process that prints a line with its port at the end, until the block ends."""
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ) as process,
    ):
        assert process.stdout is not None
        try:
            found = re.search(r":(\d+)\s*$", process.stdout.readline())
            assert found, log.read_text()
            yield Server(int(found[1]), process)
        finally:
            process.terminate()


@contextmanager
def service(folder: Path, *options: str) -> Iterator[Server]:
    """`gemmill serve` with an empty store, which signs and asks for tokens, as in use."""
    from gemmill.runtime.storage.trust.keys import SigningKey

    SigningKey.new().save(folder / "server.key")
    (folder / "tokens").write_text(f"pods read,compile {hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    command = [sys.executable, "-m", "gemmill", "serve", "--port", "0"]
    command += ["--tokens", str(folder / "tokens"), "--sign", str(folder / "server.key"), *options]
    with started(command, folder / "log", environment(folder / "store")) as server:
        yield server


def environment(store: Path, **more: str) -> dict[str, str]:
    """The environment of a process of gemmill that has a store of its own, and no settings of whoever measures."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GEMMILL_")}
    path = os.pathsep.join([str(SOURCES), *filter(None, [own.get("PYTHONPATH")])])
    return {**own, "PYTHONPATH": path, "GEMMILL_STORE": str(store), **more}
