"""A registry that fails, lies or stops: the error names it, and nothing half-written is left or used."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cases.registries import Artifact, Change
from tests.cases.remotes import CLOSE, HANG, Request, Server, http

from gemmill.library.errors import PackError, RemoteError, TrustError
from gemmill.runtime.storage.oci.artifacts import open_artifact
from gemmill.runtime.storage.oci.manifest import ARTIFACT, MAX_MANIFEST_BYTES, SIGNATURE, Descriptor, PackManifest
from gemmill.runtime.storage.oci.reference import Reference
from gemmill.runtime.storage.oci.repository import Repository
from gemmill.runtime.storage.remote.misses import Miss
from gemmill.runtime.storage.trust.signatures import TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import signature_path

pytestmark = pytest.mark.slow


@pytest.fixture
def held(path: Path) -> Artifact:
    """What the registry has."""
    blobs = path.read_bytes(), signature_path(path).read_bytes()
    pack, signature = (Descriptor.of(kind, blob) for kind, blob in zip((ARTIFACT, SIGNATURE), blobs, strict=True))
    return Artifact(PackManifest(pack, signature).to_bytes(), *blobs)


@pytest.fixture
def server(held: Artifact) -> Iterator[Server]:
    with Server(held) as made:
        yield made


def reference(server: Server, name: str = ":1") -> Reference:
    return Reference.of(f"oci://{server.url.removeprefix('http://')}/kernels/served{name}")


def of_blobs(change: Callable[[bytes, bytes], list[Any]]) -> Change:
    """What is sent in place of a large blob, given the head and the body of the answer."""

    def changed(request: Request, answer: bytes) -> list[Any]:
        head, _, body = answer.partition(b"\r\n\r\n")
        return change(head + b"\r\n\r\n", body) if request.method == "GET" and len(body) > 5000 else [answer]

    return changed


FAULTS: dict[str, tuple[Change, type[Exception], str]] = {
    "truncated": (of_blobs(lambda head, body: [head + body[:-99], CLOSE]), RemoteError, "99 bytes before the end"),
    "changed": (of_blobs(lambda head, body: [head + body[:-1] + b"?"]), PackError, "sends a blob with digest sha256:"),
    "shorter": (of_blobs(lambda head, body: [http(200, body[:-1])]), PackError, "not the .* of the manifest"),
    "endless": (
        of_blobs(lambda head, body: [b"HTTP/1.1 200 OK\r\n\r\n", *[bytes(1 << 16)] * 99]),
        PackError,
        "more than the .* bytes of the manifest",
    ),
    "broken": (of_blobs(lambda head, body: [http(500)]), RemoteError, "answers 500"),
    "no HTTP": (of_blobs(lambda head, body: [b"hello\r\n\r\n", CLOSE]), RemoteError, "does not answer with HTTP"),
    "plain": (
        of_blobs(lambda head, body: [http(307, Location="ftp://elsewhere/blob")]),
        RemoteError,
        "expected an https or http URL",
    ),
    "round": (of_blobs(lambda head, body: [http(307, Location="")]), RemoteError, "redirects without a Location"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_registry_leaves_nothing(fault: str, server: Server, held: Artifact, tmp_path: Path) -> None:
    held.change, kind, says = FAULTS[fault]
    with pytest.raises(kind, match=f"^oci://localhost:.*{says}"):
        open_artifact(reference(server), tmp_path / "store", None)
    assert not [*tmp_path.glob("store/packs/*.pack"), *tmp_path.glob("store/packs/.tmp-*")]
    held.change = lambda request, answer: [answer]
    assert open_artifact(reference(server), tmp_path / "store", None).verify() == {}


def test_what_passes_is_tried_again(server: Server, held: Artifact, tmp_path: Path) -> None:
    failed = set[str]()

    def change(request: Request, answer: bytes) -> list[Any]:
        if request.path in failed:
            return [answer]
        failed.add(request.path)
        return [http(503, Retry_After=0)] if len(failed) % 2 else [answer[: len(answer) // 2], CLOSE]

    held.change = change
    assert open_artifact(reference(server), tmp_path / "store", None).verify() == {}
    assert len(failed) == 4, "the tag, the manifest, the signature, the pack"


def test_a_slow_registry_is_given_up(server: Server, held: Artifact, tmp_path: Path) -> None:
    held.change = of_blobs(lambda head, body: [head + body[:1000], HANG])
    (pack,) = (blob for blob in held.blobs.values() if blob.startswith(b"gempack"))
    with pytest.raises(Miss, match="timeout"):
        [*Repository(reference(server), seconds=0.3).blob(Descriptor.of(ARTIFACT, pack))]


def test_credentials_stay_with_the_registry(
    server: Server, held: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(lambda request: held(request)) as other:

        def change(request: Request, answer: bytes) -> list[Any]:
            if request.headers.get("authorization") != "Bearer secret":
                return [http(401, WWW_Authenticate='Bearer realm="http://localhost:1/token",service="x"')]
            return (
                [http(307, Location=f"{other.url}{request.path}?signed=1")] if "/blobs/" in request.path else [answer]
            )

        front = Artifact(held.manifest, *held.blobs.values())
        front.change = change
        with Server(front) as home:
            monkeypatch.setenv("GEMMILL_OCI_TOKEN", f"{reference(home).host}=secret")
            assert open_artifact(reference(home), tmp_path / "store", None).verify() == {}
        assert other.asked() == ["GET /v2/kernels"] * 2
        assert not any("authorization" in request.headers for request in other.requests)


def test_an_upload_that_arrives_changed_is_an_error(path: Path) -> None:
    def answer(request: Request) -> list[bytes]:
        digest = f"sha256:{'0' * 64}"
        if request.method == "HEAD":
            return [http(404)]
        return [
            http(202, Location="upload?state=1")
            if request.method == "POST"
            else http(201, Docker_Content_Digest=digest)
        ]

    with Server(answer) as server, pytest.raises(Miss, match="received sha256:0000"):
        Repository(reference(server), push=True).put_blob(
            Descriptor.of(ARTIFACT, path.read_bytes()), lambda: path.open("rb")
        )
    assert [request.path.rpartition("/")[2][:23] for request in server.requests][1:] == ["", "upload?state=1&digest=s"]


def manifest(**changes: object) -> bytes:
    content = json.loads(PackManifest(Descriptor(ARTIFACT, "0" * 64, 9), None).to_bytes())
    return json.dumps(content | changes).encode()


LAYER = {"mediaType": ARTIFACT, "digest": f"sha256:{'0' * 64}", "size": 9}
FOREIGN: dict[str, tuple[bytes, str]] = {
    "an image": (
        manifest(artifactType=None, config={"mediaType": "image"}),
        "its artifact type is 'image'; that of a pack",
    ),
    "an index": (manifest(manifests=[]), "an index of several manifests; use the digest of one pack"),
    "too large": (b" " * (MAX_MANIFEST_BYTES + 1), "more than the limit of 1,048,576 bytes"),
    "not JSON": (b"{", "its manifest is invalid"),
    "a list": (b"[]", "its manifest is invalid"),
    "no layer": (manifest(layers=[]), "its layers are none; a pack has one of"),
    "two packs": (manifest(layers=[LAYER, LAYER]), "a pack has one of"),
    "another layer": (manifest(layers=[LAYER, {**LAYER, "mediaType": "tar"}]), "its layers are .*, 'tar'"),
    "sha512": (manifest(layers=[{**LAYER, "digest": "sha512:00"}]), "'sha512:00' of a layer is not sha256"),
    "enormous": (manifest(layers=[{**LAYER, "size": 1 << 40}]), "the size 1099511627776 of a layer"),
    "negative": (manifest(layers=[{**LAYER, "size": -1}]), "the size -1 of a layer"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_not_the_manifest_of_a_pack_is_named(kind: str, tmp_path: Path) -> None:
    data, says = FOREIGN[kind]
    with Server(Artifact(data)) as server, pytest.raises(PackError, match=f"served.*: .*{says}"):
        open_artifact(reference(server), tmp_path / "store", None)


def test_the_digest_of_a_reference_counts(server: Server, held: Artifact, tmp_path: Path) -> None:
    held.change = lambda request, answer: [http(200, held.manifest + b" ")]
    with pytest.raises(PackError, match="sends a manifest with digest"):
        open_artifact(reference(server, f"@sha256:{held.digest}"), tmp_path / "store", None)


def test_a_layer_that_is_no_pack_is_not_kept(tmp_path: Path, trusted: TrustedKeys) -> None:
    blobs = b"no pack", b"no signature"
    pack, signature = (Descriptor.of(kind, blob) for kind, blob in zip((ARTIFACT, SIGNATURE), blobs, strict=True))
    says = r"served:1: it is not a signed envelope"
    signed = Artifact(PackManifest(pack, signature).to_bytes(), *blobs)
    with Server(signed) as server, pytest.raises(TrustError, match=says):
        open_artifact(reference(server), tmp_path / "store", trusted)
    says = r"served:1: .* is a text file; it must be a pack"
    with Server(Artifact(PackManifest(pack, None).to_bytes(), *blobs)) as other, pytest.raises(PackError, match=says):
        open_artifact(reference(other), tmp_path / "store", None)
    assert not [*tmp_path.glob("store/packs/*.pack")]


PULL = """
import sys
from pathlib import Path
from gemmill.runtime.storage.oci.artifacts import open_artifact
from gemmill.runtime.storage.oci.reference import Reference
print(len(open_artifact(Reference.of(sys.argv[1]), Path(sys.argv[2]), None).names()))
"""


def test_processes_that_pull_at_once_download_once(server: Server, held: Artifact, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PULL, str(reference(server, f"@sha256:{held.digest}")), str(tmp_path / "store")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["2\n"] * 3
    assert len(server.requests) == 3, "the manifest, the signature, the pack"


def test_a_killed_pull_leaves_nothing_that_is_used(server: Server, held: Artifact, tmp_path: Path) -> None:
    held.change = of_blobs(lambda head, body: [head + body[:5000], HANG])
    store, name = tmp_path / "store", str(reference(server, f"@sha256:{held.digest}"))
    command = [sys.executable, "-c", PULL, name, str(store)]
    process = subprocess.Popen(command, env={**os.environ})
    until = time.monotonic() + 60
    while not [*store.glob("packs/.tmp-*")]:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not [*store.glob("packs/*.pack")]
    held.change = lambda request, answer: [answer]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "2\n"
    (pulled,) = store.glob("packs/*.pack")
    assert hashlib.sha256(pulled.read_bytes()).hexdigest() in held.blobs
