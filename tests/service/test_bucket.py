"""A bucket behind the disk: servers share it, it may fail or lie, and no kernel is lost for that."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from tests.service.bucket import NAME, Bucket
from tests.service.conftest import filled
from tests.service.running import KERNEL, Running, serving, tokens_file

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL as SEALED
from gemmill.runtime.storage.trust.kernel_manifest import KernelManifest
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys, seal
from gemmill.service import bucket as service_bucket
from gemmill.service.metrics import Metrics
from gemmill.service.served_kernels import Kernels, Served, Signing
from gemmill.service.state_files import Files

pytestmark = pytest.mark.slow


URL = "s3://kernels/gemmill"
OPTIONS = ("--bucket", URL)


def fetched(server: Running, artifact: Artifact) -> bytes:
    """The blob of a kernel, through its manifest."""
    return server.ask("GET", f"/v1/blobs/{server.manifest(artifact.key)['digest']}").body


def behind(folder: Path, *keys: SigningKey) -> Kernels:
    """The kernels of a server with a bucket, and keys of its own."""
    metrics, public = Metrics(), tuple(key.public for key in keys)
    trusted = TrustedKeys(public) if public else None
    place = Store(folder / "store"), Files(folder / "state", metrics), Signing(keys, trusted, trusted)
    return Kernels(*place, service_bucket.Bucket(URL, metrics), metrics)


def filling(folder: Path, artifact: Artifact, *keys: SigningKey) -> None:
    """Have a server put a kernel into the bucket that it has compiled."""

    async def publish() -> None:
        kernels = behind(folder, *keys)
        await kernels.publish(artifact)
        await kernels.settle()

    asyncio.run(publish())


def found(kernels: Kernels, key: str) -> Served | None:
    return asyncio.run(kernels.find(key))


def test_what_one_server_has_another_has(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
    (tmp_path / "one").mkdir()
    token = tokens_file(tmp_path / "one" / "tokens", writer="write")["writer"]
    manifest = KernelManifest.of(artifact)
    with serving(tmp_path / "one", *OPTIONS, "--tokens", str(tmp_path / "one" / "tokens")) as server:
        assert server.ask("PUT", f"/v1/blobs/{manifest.digest}", artifact.to_bytes(), token).status == 201
        sealed = seal(SEALED, manifest.to_bytes(), [])
        assert server.ask("PUT", f"/v1/kernels/{artifact.key}", sealed, token).status == 201
        assert server.end() == 0
    assert sorted(path.split("/")[2] for path in bucket.paths()) == ["blobs", "kernels"]
    with serving(tmp_path / "two", *OPTIONS) as server:
        assert server.instantiate(KERNEL).events[-1]["ready"] == 1
        assert fetched(server, artifact) == artifact.to_bytes()
        assert server.metric("gemmill_compiles_total") == 0
        bucket.remove(*bucket.paths())
        assert fetched(server, artifact) == artifact.to_bytes(), "the disk is its cache"


def test_a_bucket_that_lies_is_a_miss(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
    own, foreign = SigningKey.new(), SigningKey.new()
    filling(tmp_path / "one", artifact, foreign)
    for name, keys in (("flipped", ()), ("foreign", (own,))):
        bucket.flips = name == "flipped"
        kernels = behind(tmp_path / name, *keys)
        assert found(kernels, artifact.key) is None
        assert kernels._metrics.value(kernels._metrics.damaged) == 1


def test_a_manifest_without_its_blob_is_a_miss(tmp_path: Path, artifact: Artifact, bucket: Bucket) -> None:
    filling(tmp_path / "one", artifact)
    bucket.remove(*(path for path in bucket.paths() if "/blobs/" in path))
    assert found(behind(tmp_path / "two"), artifact.key) is None


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
