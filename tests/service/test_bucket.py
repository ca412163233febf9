"""A bucket behind the disk: servers share it, it may fail or lie, and no kernel is lost for that."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.service.bucket import NAME, Bucket
from tests.service.conftest import filled
from tests.service.running import KERNEL, Running, serving, tokens_file

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL as SEALED
from gemmill.runtime.storage.trust.kernel_manifest import KernelManifest
from gemmill.runtime.storage.trust.signatures import SigningKey, seal

pytestmark = pytest.mark.slow


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


def test_what_one_server_has_another_has(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
    filling(tmp_path / "one", artifact)
    assert sorted(path.split("/")[2] for path in bucket.paths()) == ["blobs", "kernels"]
    with serving(tmp_path / "two", *OPTIONS) as server:
        assert server.instantiate(KERNEL).events[-1]["ready"] == 1
        assert fetched(server, artifact) == artifact.to_bytes()
        assert server.metric("gemmill_compiles_total") == 0
        bucket.remove(*bucket.paths())
        assert fetched(server, artifact) == artifact.to_bytes(), "the disk is its cache"


def test_a_bucket_that_lies_is_a_miss(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
    own, foreign = SigningKey.new(), SigningKey.new()
    own.save(tmp_path / "own.key")
    foreign.save(tmp_path / "foreign.key")
    filling(tmp_path / "one", artifact, "--sign", str(tmp_path / "foreign.key"))
    for options in ((), ("--sign", str(tmp_path / "own.key"))):
        bucket.flips = not options
        with serving(tmp_path / f"two{len(options)}", *OPTIONS, *options) as server:
            assert server.ask("GET", f"/v1/kernels/{artifact.key}").status == 404
            assert server.metric("gemmill_damaged_total") == 1


def test_a_manifest_without_its_blob_is_a_miss(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
    filling(tmp_path / "one", artifact)
    bucket.remove(*(path for path in bucket.paths() if "/blobs/" in path))
    with serving(tmp_path / "two", *OPTIONS) as server:
        assert server.ask("GET", f"/v1/kernels/{artifact.key}").status == 404


def test_the_rule_of_the_docs_expires_what_servers_put(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
    import boto3  # moto has it

    filling(tmp_path / "one", artifact)
    docs = (Path(__file__).parents[2] / "docs" / "service" / "operators.md").read_text()
    [text] = re.findall(r"--lifecycle-configuration '(.*?)'", docs, re.DOTALL)
    rules = json.loads(text)
    s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{bucket.port}", region_name="us-east-1")
    s3.put_bucket_lifecycle_configuration(Bucket=NAME, LifecycleConfiguration=rules)
    [rule] = s3.get_bucket_lifecycle_configuration(Bucket=NAME)["Rules"]
    assert rule["Expiration"] == {"Days": 90}
    assert all(path.startswith(rule["Filter"]["Prefix"]) for path in bucket.paths())


@pytest.mark.heavy
def test_a_bucket_that_fails_costs_no_kernel(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
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
