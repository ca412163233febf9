"""What tests of the service share: two kernels that were compiled, and a server that has the first."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.bucket import Bucket
from tests.service.running import KERNEL, OTHER, Running, serving, tokens_file

from gemmill.library.config.names import parse_name
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

pytest.importorskip("uvicorn")


@pytest.fixture(scope="session")
def artifacts() -> tuple[Artifact, Artifact]:
    registry = Registry(manifests=())
    return registry.get(parse_name(KERNEL)), registry.get(parse_name(OTHER))


@pytest.fixture(scope="session")
def artifact(artifacts: tuple[Artifact, Artifact]) -> Artifact:
    return artifacts[0]


def filled(folder: Path, *artifacts: Artifact) -> Path:
    """A folder whose store has kernels."""
    folder.mkdir(exist_ok=True)
    store = Store(folder / "store")
    for artifact in artifacts:
        store.put(artifact.key, artifact)
    return folder


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    return path, tokens_file(
        path, reader="read", maker="read,compile", writer="read,write", boss="admin", late="read 2020-01-31"
    )


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, artifact: Artifact, tokens: tuple[Path, dict[str, str]]
) -> Iterator[Running]:
    """One with tokens, that has the first kernel."""
    with serving(filled(tmp_path_factory.mktemp("server"), artifact), "--tokens", str(tokens[0])) as running:
        running.manifest(artifact.key, tokens[1]["reader"])  # blobs are served that a manifest names
        yield running


@pytest.fixture(scope="session")
def digest(artifact: Artifact) -> str:
    return hashlib.sha256(artifact.to_bytes()).hexdigest()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    server = Bucket()
    threading.Thread(target=server.serve, daemon=True).start()
    for name, value in (
        ("AWS_ENDPOINT", f"http://127.0.0.1:{server.port}"),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    yield server
    server.stop()
