"""The audit log: who did what, with which result."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest
from tests.service.conftest import filled
from tests.service.running import OTHER, head, serving, tokens_file

from gemmill.runtime.storage.artifact import Artifact

pytestmark = pytest.mark.slow


def test_each_request_compilation_and_refused_token_is_a_line(tmp_path: Path, artifact: Artifact) -> None:
    secrets = tokens_file(tmp_path / "tokens", maker="read,compile")
    bad = "sm90_f32k16_f32k16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_nonsense"
    folder = filled(tmp_path / "server", artifact)
    with serving(folder, "--tokens", str(tmp_path / "tokens")) as server:
        sent = len(server.ask("GET", f"/v1/kernels/{artifact.key}", token=secrets["maker"]).body)
        server.ask("HEAD", f"/v1/kernels/{artifact.key}", token=secrets["maker"])
        server.ask("GET", f"/v1/kernels/{artifact.key}", token="mistyped")
        server.ask("GET", '/a"%0A%0A{}')
        server.ask("PUT", f"/v1/blobs/{'0' * 64}", b"x", secrets["maker"])
        assert server.instantiate(OTHER, bad, token=secrets["maker"]).events[-1]["ready"] == 1
        with server.socket() as client:
            client.sendall(head("GET /healthz"))
            client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
        with server.socket() as client:
            client.sendall(head("GET /", f"A: {'a' * 40_000}"))
            assert client.recv(100).startswith(b"HTTP/1.1 431 ")
        with server.socket() as client:
            client.sendall(b"GET /" + b"a" * 40_000)
            assert client.recv(100).startswith(b"HTTP/1.1 414 ")
        assert server.end() == 0
    log = (folder / "log").read_text()
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert [(line["who"], line["method"], line["status"], line["bytes"]) for line in requests[:3]] == [
        ("maker", "GET", 200, sent),
        ("maker", "HEAD", 200, 0),
        (None, "GET", 401, requests[2]["bytes"]),
    ]
    assert [line["status"] for line in requests[3:]] == [404, 403, 200, 200, 431, 414]
    assert requests[3]["path"] == '/a"\n\n{}'
    assert requests[4]["who"] == "maker", "a token without the scope has a name, too"
    assert {line["client"] for line in requests} == {"127.0.0.1"}, "of a client that resets its connection, too"
    assert all(line["ms"] > 0 for line in requests[:-1])
    assert "path" not in requests[-1], "it is not known to the end"
    [refused] = [line for line in lines if line["event"] == "refused_token"]
    assert (refused["client"], refused["why"]) == ("127.0.0.1", "Unknown or revoked token.")
    [compiled] = [line for line in lines if line["event"] == "compilation"]
    assert (compiled["who"], compiled["kernel"], compiled["error"]) == ("maker", OTHER, None)
    assert compiled["ms"] > 0
    assert not [secret for secret in (*secrets.values(), "mistyped") if secret in log]
