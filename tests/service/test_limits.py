"""Clients that are slow, silent, or too many: they are bounded, and others are served meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import SHUT_WR, socket

import pytest
from tests.service.conftest import filled
from tests.service.running import Running, head, serving

from gemmill.runtime.storage.artifact import Artifact

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory, artifact: Artifact) -> Iterator[Running]:
    folder = filled(tmp_path_factory.mktemp("bounded"), artifact)
    with serving(folder, "--connections", "50", "--timeout", "0.5") as server:
        yield server
    assert "Traceback" not in (folder / "log").read_text()


def is_closed(client: socket) -> bool:
    """Whether the server closes a connection, within the time of the socket."""
    with suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


HALVES = {
    "nothing": b"",
    "an empty line": b"\r\n",
    "half a line": b"GET /healthz HT",
    "half the headers": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: ",
    "half a body": head("POST /v1/instantiate", "Content-Length: 100") + b"{",
    "a chunk too few": head("POST /v1/instantiate", "Transfer-Encoding: chunked") + b"1\r\n{\r\n",
    "a second request, by half": head("GET /healthz") + b"GET /hea",
    "headers without an end": b"GET / HTTP/1.1\r\n" + b"A: " + b"a" * 40_000,
    "no HTTP": b"\x16\x03\x01" * 100,
}


@pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES)
def test_half_a_request_is_ended(bounded: Running, sent: bytes) -> None:
    with bounded.socket() as client:
        client.sendall(sent)
        assert is_closed(client)
    assert bounded.ask("GET", "/healthz").status == 200


HEADS = {
    "a long URL": (b"GET /" + b"a" * 40_000, 414, "too_large"),
    "a long header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 2_000_000, 431, "too_large"),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000, 431, "too_large"),
    "a whole head with a long URL": (head(f"GET /{'a' * 20_000}"), 414, "too_large"),
    "a whole head with a long header": (head("GET /", f"A: {'a' * 40_000}"), 431, "too_large"),
    "after another request": (head("GET /healthz") + b"GET /" + b"a" * 40_000, 414, "too_large"),
    "no HTTP": (b"\x16\x03\x01" * 100_000, 400, "http"),
    "no ASCII": (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "http"),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400, "host"),
    "two hosts": (head("GET /", "Host: localhost"), 400, "host"),
}


@pytest.mark.parametrize(("sent", "status", "code"), HEADS.values(), ids=HEADS)
def test_heads_that_are_wrong_get_an_answer(bounded: Running, sent: bytes, status: int, code: str) -> None:
    """The client gets it although it sends all before it reads."""
    with bounded.socket() as client:
        client.sendall(sent[:100])
        time.sleep(0.1)
        client.sendall(sent[100:])
        client.shutdown(SHUT_WR)
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    assert last.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(last.partition(b"\r\n\r\n")[2])["error"]["code"] == code


def test_a_line_end_too_many_ends_nothing(bounded: Running) -> None:
    body = b'{"kernels": ["sm90_f32k16_f32mn16_f32_none_f32n16_64x64x8_1x1_simt_s2_m8_k1_linear"], "wait": 2}'
    with bounded.socket() as client:
        client.sendall(head("POST /v1/instantiate", "Connection: close", f"Content-Length: {len(body)}") + body)
        client.sendall(b"\r\n")
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    assert b'"event":"done"' in answer


def test_a_client_that_does_not_read_is_ended(bounded: Running, artifact: Artifact) -> None:
    digest = bounded.manifest(artifact.key)["digest"]
    with bounded.socket() as client:
        request = head(f"GET /v1/blobs/{digest}")
        client.settimeout(20)
        with suppress(ConnectionError, TimeoutError):
            for _ in range(2000):  # more than the buffers of both ends take
                client.sendall(request)
        reason = 'gemmill_connections_closed_total{reason="slow reader"}'
        end = time.monotonic() + 30
        while bounded.metric(reason) < 1:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_flood_of_silent_connections_keeps_nobody_out(bounded: Running, artifact: Artifact) -> None:
    with ExitStack() as stack:
        before = bounded.memory()
        for i in range(300):
            client = stack.enter_context(bounded.socket())
            client.sendall(b"GET /v1/" if i % 2 else b"")
            if i % 25 == 0:
                assert bounded.ask("GET", f"/v1/kernels/{artifact.key}").status == 200
                assert bounded.files() < 50 + 60
        assert bounded.memory() - before < 64 << 20
    assert bounded.metric('gemmill_connections_closed_total{reason="crowded out"}') > 100


def test_connections_that_are_all_at_work_are_not_ended_for_another(tmp_path: Path) -> None:
    with serving(tmp_path, "--connections", "2") as server, ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(server.socket())
            client.sendall(head("POST /v1/instantiate", "Content-Length: 9"))
            time.sleep(0.1)
        refused = server.ask("GET", "/healthz")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "busy", "1")


def test_more_connections_than_files_are_refused_at_once(tmp_path: Path) -> None:
    limited = serving(tmp_path, before=["prlimit", "--nofile=300:300"])
    says = "1,000 connections need 1,128 open files, but the limit of this process is 300"
    with pytest.raises(AssertionError, match=says), limited:
        pass
