"""How a server ends: in order after SIGTERM, and without harm when it is killed."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.service.conftest import filled
from tests.service.running import KERNEL, OTHER, Answer, serving

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

pytestmark = pytest.mark.slow


def test_after_sigterm_what_is_at_work_is_answered_and_what_waits_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain", "60", jobs=1) as server:
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(server.instantiate(KERNEL, OTHER)))
        thread.start()
        while server.metric("gemmill_compiling") < 1:
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        while (ready := server.ask("GET", "/readyz")).status == 200:
            time.sleep(0.05)
        assert (ready.status, ready.code) == (503, "not_ready")
        thread.join()
        assert server.process.wait(60) == 0
        [answer] = answers
        ends = {event["kernel"]: event for event in answer.events if event["event"] in ("ready", "failed")}
        assert ends[KERNEL]["event"] == "ready"
        assert ends[OTHER]["error"]["code"] == "ending"
        assert answer.events[-1]["event"] == "done"


def test_what_is_being_compiled_is_finished_though_nobody_waits(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain", "60") as server:
        assert server.instantiate(KERNEL, wait=0).events[-1]["pending"] == 1
        while server.metric("gemmill_compiling") < 1:
            time.sleep(0.05)
        assert server.end() == 0
    assert len(Store(tmp_path / "store").list()) == 1


@pytest.mark.heavy
def test_a_server_that_is_killed_in_the_middle_leaves_nothing_wrong(tmp_path: Path, artifact: Artifact) -> None:
    folder = filled(tmp_path / "server", artifact)
    blob = artifact.to_bytes()
    for _ in range(3):
        with serving(folder) as server:
            digest = server.manifest(artifact.key)["digest"]
            with server.socket() as client, suppress(OSError, HTTPException):
                client.sendall(f"GET /v1/blobs/{digest} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                client.recv(100)
                thread = threading.Thread(target=lambda: _asked(server.instantiate, OTHER), daemon=True)
                thread.start()
                time.sleep(0.3)
                assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert not Store(folder / "store").verify()
    with serving(folder) as server:
        assert server.ask("GET", f"/v1/blobs/{digest}").body == blob
        assert server.instantiate(OTHER).events[-1]["ready"] == 1


def _asked(ask: object, *arguments: str) -> None:
    with suppress(OSError, HTTPException):
        ask(*arguments)  # type: ignore[operator]


def test_a_disk_that_is_full_costs_no_kernel(tmp_path: Path) -> None:
    # No file may get more than 4 KiB, as where little is left: blobs are larger.
    with serving(tmp_path, before=["prlimit", "--fsize=4096:unlimited"]) as server:
        events = server.instantiate(KERNEL).events
        assert events[-1]["ready"] == 1
        key = events[0]["key"]
        digest = server.manifest(key)["digest"]
        assert server.ask("GET", f"/v1/blobs/{digest}").status == 200
        refused = server.ask("GET", "/readyz")
        assert (refused.status, refused.code) == (503, "not_ready")
        assert "File too large" in refused.json["error"]["message"]
        subprocess.run(["prlimit", f"--pid={server.process.pid}", "--fsize=unlimited"], check=True)
        assert server.ask("GET", "/readyz").status == 200, "there is room again"
        assert server.end() == 0
