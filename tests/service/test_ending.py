"""How a server ends: in order after SIGTERM, and without harm when it is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from tests.service.conftest import filled
from tests.service.running import KERNEL, OTHER, Answer, head, serving

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


def test_clients_that_stall_leave_no_traceback(tmp_path: Path, artifact: Artifact) -> None:
    slow = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"
    body = json.dumps({"kernels": [slow], "wait": 60}).encode()
    folder = filled(tmp_path / "server", artifact)
    with serving(folder, "--drain", "0") as server, ExitStack() as stack:
        blob = head(f"GET /v1/blobs/{server.manifest(artifact.key)['digest']}")
        stalled = {
            "amid the head": b"GET /healthz HTTP/1.1\r\nHost: local",
            "amid the body": head("POST /v1/select", "Content-Length: 100") + b"{",
            "amid the response": blob * 2000,
            "amid a stream": head("POST /v1/instantiate", f"Content-Length: {len(body)}") + body,
            "idle": head("GET /healthz"),
        }
        clients = {name: stack.enter_context(server.socket()) for name in stalled}
        for name, sent in stalled.items():
            clients[name].settimeout(5)
            with suppress(TimeoutError):
                clients[name].sendall(sent)
        while server.metric("gemmill_compiling") < 1:
            time.sleep(0.05)
        assert server.end() == 0
        refused = clients["amid the body"].recv(1 << 16)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"ending"' in refused
    log = (folder / "log").read_text()
    assert "Traceback" not in log
    assert "ASGI callable" not in log


@pytest.mark.heavy
def test_a_server_that_is_killed_in_the_middle_leaves_nothing_wrong(tmp_path: Path, artifact: Artifact) -> None:
    folder = filled(tmp_path / "server", artifact)
    blob = artifact.to_bytes()
    for _ in range(3):
        with serving(folder) as server:
            digest = server.manifest(artifact.key)["digest"]
            with server.socket() as client, suppress(OSError, HTTPException):
                client.sendall(head(f"GET /v1/blobs/{digest}"))
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
