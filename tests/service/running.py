"""A server in a process of its own, on the loopback interface, and what tests ask of it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

KERNEL = "sm90_f32k16_f32k16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear"
OTHER = "sm90_f32k16_f32mn16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear"
"""Kernels that compile soon."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error."""
        return str(self.json["error"]["code"])

    @property
    def events(self) -> list[dict[str, Any]]:
        """Of an instantiation."""
        return [json.loads(line) for line in self.body.splitlines()]


class Running:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def connect(self, seconds: float = 60) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=seconds)

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def ask(self, method: str, path: str, body: object = None, token: str = "", **headers: str) -> Answer:
        """One request; what is no bytes is sent as JSON. Underscores in names of headers stand for hyphens."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connect()
        try:
            connection.request(method, path, data, sent | ({"Authorization": f"Bearer {token}"} if token else {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def instantiate(self, *kernels: str, token: str = "", **more: object) -> Answer:
        return self.ask("POST", "/v1/instantiate", {"kernels": kernels, **more}, token)

    def manifest(self, key: str, token: str = "") -> dict[str, Any]:
        envelope = self.ask("GET", f"/v1/kernels/{key}", token=token).json
        found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
        return found

    def metric(self, name: str, token: str = "") -> float:
        """A figure, as /metrics names it, with its labels; the sum of all where there are none. 0 where there is
        none."""
        page = self.ask("GET", "/metrics", token=token).body.decode()
        found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
        return sum(map(float, found))

    def files(self) -> int:
        """Descriptors that the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self) -> int:
        """Bytes that the process has in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) << 10

    def end(self, number: int = signal.SIGTERM) -> int:
        """The status it ends with."""
        self.process.send_signal(number)
        return self.process.wait(60)


def head(line: str, *headers: str) -> bytes:
    """The head of a request."""
    return "\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


@contextmanager
def serving(folder: Path, *options: str, before: Sequence[str] = (), jobs: int = 2) -> Iterator[Running]:
    """A server whose store and state are in a folder.

    Args:
        folder: where these are, and the log.
        options: of the command.
        before: what the command line begins with, as ``prlimit`` and others do.
        jobs: processes that compile.
    """
    command = [*before, sys.executable, "-m", "gemmill", "serve", "--port", "0", "--jobs", str(jobs), *options]
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"GEMMILL_STORE": str(folder / "store")}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+)$", line.strip())
        assert found, (folder / "log").read_text()
        yield Running(process, int(found[1]))
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def tokens_file(path: Path, **scopes: str) -> dict[str, str]:
    """Write a file of tokens; the tokens by name."""
    secrets = {name: f"secret-of-{name}" for name in scopes}
    lines = [
        f"{name} {words.replace(' ', ' ' + hashlib.sha256(secrets[name].encode()).hexdigest() + ' ', 1)}"
        if " " in words
        else f"{name} {words} {hashlib.sha256(secrets[name].encode()).hexdigest()}"
        for name, words in scopes.items()
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return secrets
