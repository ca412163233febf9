"""Manifests and blobs over HTTP: what is read, and what is taken in."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.service.conftest import filled
from tests.service.running import Running, serving, tokens_file

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.signatures import SigningKey, seal

pytestmark = pytest.mark.slow
READ, WRITE = "secret-of-reader", "secret-of-writer"


def test_a_manifest_names_the_blob_that_is_served(server: Running, artifact: Artifact, digest: str) -> None:
    manifest = server.manifest(artifact.key, READ)
    assert (manifest["kernel"], manifest["digest"]) == (artifact.name, digest)
    blob = server.ask("GET", f"/v1/blobs/{digest}", token=READ)
    assert (blob.status, blob.body) == (200, artifact.to_bytes())
    assert "immutable" in blob.headers["cache-control"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("bytes=0-9", slice(0, 10)), ("bytes=-7", slice(-7, None)), ("bytes=100-", slice(100, None))],
)
def test_ranges(server: Running, artifact: Artifact, digest: str, asked: str, expected: slice) -> None:
    blob = artifact.to_bytes()
    answer = server.ask("GET", f"/v1/blobs/{digest}", token=READ, Range=asked)
    assert (answer.status, answer.body) == (206, blob[expected])
    assert answer.headers["content-range"].endswith(f"/{len(blob)}")


def test_ranges_that_are_none_and_those_of_another_blob(server: Running, artifact: Artifact, digest: str) -> None:
    path, size = f"/v1/blobs/{digest}", len(artifact.to_bytes())
    assert server.ask("GET", path, token=READ, Range=f"bytes={size}-").status == 416
    assert server.ask("GET", path, token=READ, Range="bytes=0-1,4-5").status == 200
    assert server.ask("GET", path, token=READ, Range="bytes=0-1", If_Range='"another"').status == 200


def test_what_a_client_has_is_not_sent_again(server: Running, artifact: Artifact, digest: str) -> None:
    for path in (f"/v1/blobs/{digest}", f"/v1/kernels/{artifact.key}"):
        etag = server.ask("GET", path, token=READ).headers["etag"]
        again = server.ask("GET", path, token=READ, If_None_Match=etag)
        assert (again.status, again.body) == (304, b"")
        head = server.ask("HEAD", path, token=READ)
        assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("path", ["/v1/kernels/", "/v1/blobs/"])
def test_what_is_not_there_and_what_is_no_digest(server: Running, path: str) -> None:
    assert server.ask("GET", path + "0" * 64, token=READ).code == "not_found"
    assert server.ask("GET", path + "..%2F..%2Fetc%2Fpasswd", token=READ).code in ("malformed", "not_found")
    assert server.ask("GET", path + "A" * 64, token=READ).code == "malformed"


def test_a_kernel_is_taken_in_blob_first(server: Running, artifacts: tuple[Artifact, Artifact]) -> None:
    _, other = artifacts
    blob, manifest = other.to_bytes(), KernelManifest.of(other)
    envelope = seal(KERNEL, manifest.to_bytes(), [])
    kernel, place = f"/v1/kernels/{other.key}", f"/v1/blobs/{manifest.digest}"
    assert server.ask("PUT", kernel, envelope, WRITE).code == "no_blob"
    assert server.ask("PUT", place, blob[:-1] + bytes([blob[-1] ^ 1]), WRITE).code == "digest"
    assert server.ask("PUT", place, blob, WRITE).status == 201
    assert server.ask("GET", place, token=READ).status == 404, "nothing is served that no manifest names"
    assert server.ask("PUT", kernel.replace(other.key, "0" * 64), envelope, WRITE).code == "wrong_key"
    assert server.ask("PUT", kernel, envelope, WRITE).status == 201
    assert server.ask("PUT", kernel, envelope, WRITE).status == 200
    assert server.ask("GET", place, token=READ).body == blob


def test_what_is_no_kernel_is_not_taken_in(server: Running) -> None:
    body = b"x" * 1000
    assert server.ask("PUT", f"/v1/blobs/{hashlib.sha256(body).hexdigest()}", body, WRITE).code == "no_kernel"


def test_bodies_that_are_too_large_are_refused_before_they_are_read(server: Running, digest: str) -> None:
    with server.socket() as to:
        to.sendall(
            f"PUT /v1/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {WRITE}\r\n"
            "Content-Length: 99999999999\r\n\r\n".encode()
        )
        assert b"413" in to.recv(1000)
    assert server.ask("POST", "/v1/select", b" " * (2 << 20), READ).code == "too_large"


def test_paths_and_methods_that_are_none(server: Running, artifact: Artifact) -> None:
    for path in (
        "/v1/kernels",
        "/v1/kernels/",
        f"/v1/kernels/{artifact.key}/more",
        "//",
        "/v1/nonsense/x",
        "/healthz/",
    ):
        assert (answer := server.ask("GET", path, token=READ)).code == "not_found", answer
    for method, path in (("DELETE", f"/v1/kernels/{artifact.key}"), ("GET", "/v1/instantiate"), ("POST", "/")):
        answer = server.ask(method, path, token=READ)
        assert (answer.status, answer.code) == (405, "method")


def test_answers_come_whole_and_in_order(server: Running, artifact: Artifact, digest: str) -> None:
    """Headers and body are sent together, what announces a body at once."""
    blob, more = artifact.to_bytes(), f"Host: localhost\r\nAuthorization: Bearer {WRITE}\r\n"
    with server.socket() as to:
        to.sendall((f"GET /v1/blobs/{digest} HTTP/1.1\r\n{more}\r\n" * 3).encode())
        put = f"PUT /v1/blobs/{digest} HTTP/1.1\r\n{more}Expect: 100-continue\r\nContent-Length: {len(blob)}\r\n\r\n"
        got = b""
        while got.count(blob) < 3:
            got += to.recv(1 << 16)
        to.sendall(put.encode())
        assert to.recv(1 << 16).startswith(b"HTTP/1.1 100 Continue")
        to.sendall(blob)
        assert to.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert got.count(b"HTTP/1.1 200 OK") == 3


def test_signatures(tmp_path: Path, artifacts: tuple[Artifact, Artifact]) -> None:
    first, other = artifacts
    own, theirs, foreign = (SigningKey.new() for _ in range(3))
    own.save(tmp_path / "own.key")
    token = tokens_file(tmp_path / "tokens", writer="read,write")["writer"]
    options = ("--sign", str(tmp_path / "own.key"), "--trust", str(theirs.public), "--tokens", str(tmp_path / "tokens"))
    with serving(filled(tmp_path / "server", first), *options) as server:
        [signature] = server.ask("GET", f"/v1/kernels/{first.key}", token=token).json["signatures"]
        assert signature["key"] == own.public.id
        manifest = KernelManifest.of(other)
        server.ask("PUT", f"/v1/blobs/{manifest.digest}", other.to_bytes(), token)
        for keys, code in (([], "unsigned"), ([foreign], "unknown_key")):
            sealed = seal(KERNEL, manifest.to_bytes(), keys)
            assert server.ask("PUT", f"/v1/kernels/{other.key}", sealed, token).code == code
        sealed = seal(KERNEL, manifest.to_bytes(), [theirs])
        assert server.ask("PUT", f"/v1/kernels/{other.key}", sealed, token).status == 201
        [signature] = server.ask("GET", f"/v1/kernels/{other.key}", token=token).json["signatures"]
        assert signature["key"] == own.public.id, "the server vouches for what it serves"
