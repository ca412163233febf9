"""What a server keeps, without a server: manifests live and die with their kernels."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.service.metrics import Metrics
from gemmill.service.served_kernels import Kernels, Served, Signing
from gemmill.service.state_files import Files

pytestmark = pytest.mark.slow


def kernels(folder: Path) -> Kernels:
    """As another process would see them: nothing is in memory yet."""
    metrics = Metrics()
    return Kernels(Store(folder / "store"), Files(folder / "state", metrics), Signing.load((), ""), None, metrics)


def found(folder: Path, key: str) -> Served | None:
    return asyncio.run(kernels(folder).find(key))


def test_a_manifest_goes_with_its_kernel(tmp_path: Path, artifact: Artifact) -> None:
    served = asyncio.run(kernels(tmp_path).publish(artifact))
    assert found(tmp_path, artifact.key) == served
    assert kernels(tmp_path).sweep() == 0
    Store(tmp_path / "store").drop(artifact.key)
    assert found(tmp_path, artifact.key) is None
    assert kernels(tmp_path).sweep() == 1
    assert not [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert asyncio.run(kernels(tmp_path).find_blob(served.manifest.digest)) is None


def test_a_damaged_kernel_is_a_miss_until_it_is_there_again(tmp_path: Path, artifact: Artifact) -> None:
    served = asyncio.run(kernels(tmp_path).publish(artifact))
    entry = Store(tmp_path / "store").list()[0].path
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    server = kernels(tmp_path)
    assert asyncio.run(server.find_blob(served.manifest.digest)) is None
    assert server._metrics.value(server._metrics.damaged) == 1
    assert not entry.exists()
    assert asyncio.run(server.find(artifact.key)) is None
    Store(tmp_path / "store").put(artifact.key, artifact)
    assert asyncio.run(server.find(artifact.key)) == served
    assert asyncio.run(server.find_blob(served.manifest.digest)) == artifact.to_bytes()


def test_a_manifest_of_another_blob_is_made_anew(tmp_path: Path, artifacts: tuple[Artifact, Artifact]) -> None:
    first, other = artifacts
    served = asyncio.run(kernels(tmp_path).publish(first))
    wrong = asyncio.run(kernels(tmp_path).publish(other))
    [place] = (tmp_path / "state" / "manifests").rglob(first.key)
    for content in (wrong.envelope, b"nonsense", served.envelope[:-5]):
        place.write_bytes(content)
        assert found(tmp_path, first.key) == served
        assert place.read_bytes() == served.envelope
