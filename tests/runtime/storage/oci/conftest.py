"""A signed pack, and a store of this test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.oci import artifacts as oci
from gemmill.runtime.storage.pack import write_pack
from gemmill.runtime.storage.trust.signatures import SigningKey
from gemmill.runtime.storage.trust.signed_packs import sign_pack


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No tag is known from another test, and nobody is logged in."""
    oci._found.cache_clear()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def path(tmp_path: Path, artifacts: tuple[Artifact, ...], key: SigningKey) -> Path:
    """The pack."""
    write_pack(path := tmp_path / "kernels.pack", artifacts)
    sign_pack(path, [key])
    return path
