"""Thousands of requests of every kind at once, from clients that leave in the middle, at a server that is killed."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.service.conftest import filled
from tests.service.running import KERNEL, OTHER, Answer, Running, serving, tokens_file

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
THREADS, REQUESTS, KILLS = 32, 120, 3
MAKE, READ = "secret-of-maker", "secret-of-reader"


class Storm:
    """Clients, and what came back."""

    def __init__(self, artifact: Artifact) -> None:
        self.seen: Counter[object] = Counter()
        """Statuses by kind of request; ``cut`` where the server went in the middle."""
        self.wrong: list[object] = []
        self.server: Running
        self._key, self._blob = artifact.key, artifact.to_bytes()
        self._digest = hashlib.sha256(self._blob).hexdigest()

    def client(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = (self.manifest, self.blob, self.part, self.made, self.refused, self.leaving)
        for _ in range(REQUESTS):
            kind: Callable[[], Answer | None] = chance.choice(kinds)
            try:
                answer = kind()
            except (OSError, HTTPException, json.JSONDecodeError):
                self.seen[kind.__name__, "cut"] += 1
                time.sleep(0.1)
            else:
                self.seen[kind.__name__, answer and answer.status] += 1

    def manifest(self) -> Answer:
        return self._expect(self.server.ask("GET", f"/v1/kernels/{self._key}", token=READ), 200, None)

    def blob(self) -> Answer:
        return self._expect(self.server.ask("GET", f"/v1/blobs/{self._digest}", token=READ), 200, self._blob)

    def part(self) -> Answer:
        answer = self.server.ask("GET", f"/v1/blobs/{self._digest}", token=READ, Range="bytes=1000-1999")
        return self._expect(answer, 206, self._blob[1000:2000])

    def made(self) -> Answer:
        answer = self.server.instantiate(KERNEL, OTHER, token=MAKE)
        last = answer.events[-1]
        if last["event"] != "done":
            raise HTTPException  # cut off, and so it says
        if last["ready"] != 2:
            self.wrong.append(answer)
        return answer

    def refused(self) -> Answer:
        return self._expect(self.server.ask("GET", f"/v1/blobs/{self._digest}", token="wrong"), 401, None)

    def leaving(self) -> None:
        with self.server.socket() as client:
            request = f"GET /v1/blobs/{self._digest} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {READ}\r\n\r\n"
            client.sendall(request[: random.randrange(len(request))].encode() or b"G")

    def _expect(self, answer: Answer, status: int, body: bytes | None) -> Answer:
        if answer.status != status or (body is not None and answer.body != body):
            self.wrong.append(answer)
        return answer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_storm(tmp_path: Path, artifact: Artifact) -> None:
    folder, port = filled(tmp_path / "server", artifact), free_port()
    tokens_file(tmp_path / "tokens", reader="read", maker="read,compile")
    options = ("--tokens", str(tmp_path / "tokens"), "--port", str(port), "--connections", "60")
    storm = Storm(artifact)
    with ExitStack() as stack:
        storm.server = stack.enter_context(serving(folder, *options))
        storm.server.manifest(artifact.key, READ)  # which says where the blob is
        threads = [threading.Thread(target=storm.client, args=[seed]) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            time.sleep(2)
            with suppress(AssertionError):
                storm.server.end(signal.SIGKILL)
            storm.server = stack.enter_context(serving(folder, *options))
        for thread in threads:
            thread.join()
        server = storm.server
        assert not storm.wrong
        assert sum(storm.seen.values()) == THREADS * REQUESTS
        assert storm.seen["made", 200] > 0
        assert server.metric('gemmill_compiles_total{outcome="ok"}', READ) <= 1
        assert server.metric('gemmill_requests_total{status="500"}', READ) == 0
        assert server.files() < 60 + 60
        assert server.end() == 0
    assert not Store(folder / "store").verify()
    assert "Traceback" not in (folder / "log").read_text()
