"""A bucket behind the disk: servers share it, it may fail or lie, and no kernel is lost for that."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.service.conftest import filled
from tests.service.running import KERNEL, Running, serving, tokens_file

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.trust.envelope import seal
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL as SEALED
from gemmill.runtime.storage.trust.kernel_manifest import KernelManifest
from gemmill.runtime.storage.trust.keys import SigningKey

pytestmark = pytest.mark.slow


class Store(ThreadingHTTPServer):
    """What of S3 the service asks for, in memory: GET and PUT of objects."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.fails = 0.0
        """Part of the requests that fail."""
        self.flips = False
        """Whether blobs come back with a bit flipped."""
        self.chance = random.Random(0)


class Handler(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        data = self.server.objects.get(self.path)
        if data is not None and self.server.flips and "/blobs/" in self.path:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.answer(404 if data is None else 200, data or b"")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.answer(200):
            self.server.objects[self.path.partition("?")[0]] = data

    def answer(self, status: int, data: bytes = b"") -> bool:
        failed = self.server.chance.random() < self.server.fails
        self.send_response(500 if failed else status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Fri, 27 Nov 2026 12:00:00 GMT")
        self.end_headers()
        self.wfile.write(data)
        return not failed

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with Store() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in (
            ("AWS_ENDPOINT", f"http://127.0.0.1:{server.server_port}"),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_SKIP_SIGNATURE", "true"),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        yield server
        server.shutdown()


OPTIONS = ("--bucket", "s3://kernels/gemmill")


def fetched(server: Running, artifact: Artifact) -> bytes:
    """The blob of a kernel, through its manifest."""
    return server.ask("GET", f"/v1/blobs/{server.manifest(artifact.key)['digest']}").body


def filling(folder: Path, artifact: Artifact, *options: str) -> None:
    """Have a server put a kernel into the bucket that it is sent."""
    folder.mkdir()
    token = tokens_file(folder / "tokens", writer="write")["writer"]
    manifest = KernelManifest.of(artifact)
    with serving(folder, *OPTIONS, "--tokens", str(folder / "tokens"), *options) as server:
        assert server.ask("PUT", f"/v1/blobs/{manifest.digest}", artifact.to_bytes(), token).status == 201
        keys = [SigningKey.load(path) for path in options[1::2]]
        sealed = seal(SEALED, manifest.to_bytes(), keys)
        assert server.ask("PUT", f"/v1/kernels/{artifact.key}", sealed, token).status == 201
        assert server.end() == 0


def test_what_one_server_has_another_has(tmp_path: Path, artifact: Artifact, bucket: Store) -> None:
    filling(tmp_path / "one", artifact)
    assert sorted(path.split("/")[4] for path in bucket.objects) == ["blobs", "kernels"]
    with serving(tmp_path / "two", *OPTIONS) as server:
        assert server.instantiate(KERNEL).events[-1]["ready"] == 1
        assert fetched(server, artifact) == artifact.to_bytes()
        assert server.metric("gemmill_compiles_total") == 0
        bucket.objects.clear()
        assert fetched(server, artifact) == artifact.to_bytes(), "the disk is its cache"


def test_a_bucket_that_lies_is_a_miss(tmp_path: Path, artifact: Artifact, bucket: Store) -> None:
    own, foreign = SigningKey.new(), SigningKey.new()
    own.save(tmp_path / "own.key")
    foreign.save(tmp_path / "foreign.key")
    filling(tmp_path / "one", artifact, "--sign", str(tmp_path / "foreign.key"))
    for options in ((), ("--sign", str(tmp_path / "own.key"))):
        bucket.flips = not options
        with serving(tmp_path / f"two{len(options)}", *OPTIONS, *options) as server:
            assert server.ask("GET", f"/v1/kernels/{artifact.key}").status == 404
            assert server.metric("gemmill_damaged_total") == 1


def test_a_manifest_without_its_blob_is_a_miss(tmp_path: Path, artifact: Artifact, bucket: Store) -> None:
    filling(tmp_path / "one", artifact)
    for path in [path for path in bucket.objects if "/blobs/" in path]:
        del bucket.objects[path]
    with serving(tmp_path / "two", *OPTIONS) as server:
        assert server.ask("GET", f"/v1/kernels/{artifact.key}").status == 404


@pytest.mark.heavy
def test_a_bucket_that_fails_costs_no_kernel(tmp_path: Path, artifact: Artifact, bucket: Store) -> None:
    for fails in (0.5, 1.0):
        bucket.fails = fails
        folder = filled(tmp_path / f"server{fails}", artifact)
        with serving(folder, *OPTIONS) as server:
            assert fetched(server, artifact) == artifact.to_bytes()
            absent = server.ask("GET", f"/v1/kernels/{'0' * 64}")
            assert absent.status == 404
    bucket.fails = 1.0
    with serving(tmp_path / "cold", *OPTIONS) as server:
        assert server.instantiate(KERNEL).events[-1]["ready"] == 1
        assert server.metric('gemmill_compiles_total{outcome="ok"}') == 1
        assert server.end() == 0
