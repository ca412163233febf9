"""Clients of a storm: threads that ask a server for everything, and pods that get their kernels from it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.service.running import KERNEL, OTHER, Answer, Running, head

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.remote.misses import REASONS

POD = Path(__file__).with_name("pod.py")
YEAR_SECONDS = 365 * 86400


class Storm:
    """Requests of every kind, from threads, and what came back."""

    def __init__(self, server: Running, artifact: Artifact, digest: str, secrets: dict[str, str]) -> None:
        self.server = server
        self.seen: Counter[tuple[str, object]] = Counter()
        """Since :meth:`begin`, statuses by kind of request; ``cut`` where the server went in the middle."""
        self.requests = 0
        self.wrong: list[object] = []
        self._key, self._blob, self._digest, self._secrets = artifact.key, artifact.to_bytes(), digest, secrets
        self._lock = threading.Lock()

    def threads(
        self, kinds: Sequence[Callable[[], Answer | None]], count: int, requests: int
    ) -> list[threading.Thread]:
        """Clients that have begun."""
        threads = [threading.Thread(target=self._client, args=[seed, kinds, requests]) for seed in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def _client(self, seed: int, kinds: Sequence[Callable[[], Answer | None]], requests: int) -> None:
        chance = random.Random(seed)
        for _ in range(requests):
            kind = chance.choice(kinds)
            status: object = "cut"
            try:
                answer = kind()
                status = answer and answer.status
            except (OSError, HTTPException, json.JSONDecodeError):
                time.sleep(0.1)
            with self._lock:
                self.seen[kind.__name__, status] += 1
                self.requests += 1

    def begin(self) -> None:
        """Count anew what comes back."""
        self.seen.clear()

    def count(self, status: object, *kinds: str) -> int:
        """Requests of kinds, by default of all, that ended with a status."""
        return sum(n for (kind, found), n in self.seen.items() if found == status and (not kinds or kind in kinds))

    def manifest(self) -> Answer:
        return self._expect(self._get(f"/v1/kernels/{self._key}"), 200, None)

    def blob(self) -> Answer:
        return self._expect(self._get(f"/v1/blobs/{self._digest}"), 200, self._blob)

    def part(self) -> Answer:
        return self._expect(self._get(f"/v1/blobs/{self._digest}", Range="bytes=1000-1999"), 206, self._blob[1000:2000])

    def made(self) -> Answer:
        answer = self.server.instantiate(KERNEL, OTHER, token=self._secrets["maker"])
        last = answer.events[-1]
        if last["event"] != "done":
            raise HTTPException  # cut off, and so it says
        if last["ready"] != 2:
            self.wrong.append(answer)
        return answer

    def absent(self) -> Answer:
        return self._expect(self._get(f"/v1/kernels/{random.randrange(20):064x}"), 404, None)

    def refused(self) -> Answer:
        return self._expect(self._get(f"/v1/blobs/{self._digest}", "wrong"), 401, None)

    def expired(self) -> Answer:
        return self._expect(self._get(f"/v1/kernels/{self._key}", self._secrets["late"]), 401, None)

    def leaving(self) -> None:
        with self.server.socket() as client:
            token = self._secrets["reader"]
            request = head(f"GET /v1/blobs/{self._digest}", f"Authorization: Bearer {token}")
            client.sendall(request[: random.randrange(1, len(request))])

    def _get(self, path: str, token: str = "", **headers: str) -> Answer:
        return self.server.ask("GET", path, token=token or self._secrets["reader"], **headers)

    def _expect(self, answer: Answer, status: int, body: bytes | None) -> Answer:
        if answer.status != status or (body is not None and answer.body != body):
            self.wrong.append(answer)
        return answer


class Pods:
    """Processes with the client that ships; and what they tell.

    Args:
        trusted: the public key that signs.
        digests: what each kernel must be.
    """

    def __init__(self, trusted: str, digests: dict[str, str]) -> None:
        self._trusted, self._digests = trusted, digests
        self.requests = 0
        """That they have sent."""

    def start(self, port: int, token: str, rounds: int, **environ: str) -> subprocess.Popen[str]:
        """One that gets each kernel so many times."""
        environment = os.environ | {
            "POD_REMOTE": f"http://127.0.0.1:{port}",
            "POD_TOKEN": token,
            "GEMMILL_TRUSTED_KEYS": self._trusted,
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environ,
        }
        command = [sys.executable, str(POD), str(rounds), *self._digests]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def told(self, pod: subprocess.Popen[str], rounds: int) -> list[dict[str, Any]]:
        """All that one has got, after its end: each call has its kernel, from the server or compiled."""
        output, _ = pod.communicate(timeout=120)
        assert pod.returncode == 0
        lines = [json.loads(line) for line in output.splitlines()]
        assert len(lines) == rounds * len(self._digests), "no call failed"
        return self.checked(lines)

    def checked(self, lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """What one has told, when that is right."""
        found = [*lines]
        for line in found:
            assert line["digest"] == self._digests[line["kernel"]], line
            assert line.get("hits", 0) + line["compiled"] == 1, line
            assert sum(line.get(reason, 0) for reason in REASONS) == line["compiled"], line
            self.requests += line.get("requests", 0)
        return found
