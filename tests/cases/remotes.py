"""Servers on loopback that keep to the protocol of remotes, or break it in one way each."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.signatures import SigningKey, seal


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {'/'.join(self.path.split('/')[:3])}"


class Stop:
    """What a server does in place of sending on."""


HANG = Stop()
"""It keeps the connection and says nothing more."""
CLOSE = Stop()
"""It closes the connection."""
Parts = Iterable[bytes | Stop]
Answer = Callable[[Request], Parts]


class Server:
    """A server in threads of this process.

    Args:
        answer: what is sent for a request, part by part.
        tls: what it speaks TLS with.
    """

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer, self.requests = answer, list[Request]()
        self._tls, self._over = tls, threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.connections: list[socket.socket] = []
        self.url = f"{'https' if tls else 'http'}://localhost:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in (self._socket, *self.connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def asked(self) -> list[str]:
        """Methods and first parts of the paths of all requests."""
        return [*map(str, self.requests)]

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self.connections.append(connection)
            with connection, connection.makefile("rb") as file:
                while (request := _read(file)) is not None:
                    self.requests.append(request)
                    for part in self.answer(request):
                        if part is HANG:
                            self._over.wait()
                        if isinstance(part, Stop):
                            return
                        if self._over.is_set():
                            return
                        connection.sendall(part)


def _read(file: object) -> Request | None:
    line = file.readline().decode()  # type: ignore[attr-defined]
    if not line:
        return None
    method, path, _ = line.split(" ")
    headers = {}
    while line := file.readline().decode().strip():  # type: ignore[attr-defined]
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Request(method, path, headers, file.read(int(headers.get("content-length", 0))))  # type: ignore[attr-defined]


def http(status: int, body: bytes = b"", **headers: object) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def sealed(artifact: Artifact, keys: Sequence[SigningKey]) -> bytes:
    """The signed manifest of a kernel."""
    return seal(KERNEL, KernelManifest.of(artifact).to_bytes(), keys)


@dataclass
class Honest:
    """What keeps to the protocol."""

    artifacts: list[Artifact]
    """Kernels that can be got."""
    keys: Sequence[SigningKey]
    made: list[Artifact] = field(default_factory=list)
    """Kernels that are made when they are asked for."""
    put: dict[str, bytes] = field(default_factory=dict)
    """What was uploaded, by path."""

    def __call__(self, request: Request) -> Iterator[bytes | Stop]:
        if request.method == "PUT":
            status = 412 if request.path in self.put else 201
            self.put[request.path] = request.body
            yield http(status)
        elif request.path == "/v1/instantiate":
            yield http(200, self.events(json.loads(request.body)["kernels"]))
        else:
            found = self.documents().get(request.path)
            yield http(404) if found is None else http(200, found)

    def documents(self) -> dict[str, bytes]:
        """What can be got, by path."""
        found = dict(self.put)
        for artifact in self.artifacts:
            found[f"/v1/kernels/{artifact.key}"] = sealed(artifact, self.keys)
            found[f"/v1/blobs/{KernelManifest.of(artifact).digest}"] = artifact.to_bytes()
        return found

    def events(self, names: Sequence[str]) -> bytes:
        """What is said of kernels that are asked for by name."""
        known = {artifact.name: artifact for artifact in (*self.artifacts, *self.made)}
        lines: list[dict[str, object]] = []
        for name in names:
            if (artifact := known.get(name)) is None:
                lines.append({"event": "failed", "kernel": name, "error": {"code": "compile", "message": "no"}})
                continue
            lines.append({"event": "resolved", "kernel": name, "key": artifact.key})
            if artifact in self.made:
                lines.append({"event": "compiling", "kernel": name})
                self.artifacts.append(artifact)
            manifest = json.loads(sealed(artifact, self.keys))
            lines.append({"event": "ready", "kernel": name, "key": artifact.key, "manifest": manifest})
        ready = sum(line["event"] == "ready" for line in lines)
        lines.append({"event": "done", "ready": ready, "failed": len(names) - ready, "pending": 0})
        return "".join(f"{json.dumps(line)}\n" for line in lines).encode()
