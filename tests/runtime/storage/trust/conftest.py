"""A pack that a trusted key signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import write_pack
from gemmill.runtime.storage.trust.signatures import SigningKey
from gemmill.runtime.storage.trust.signed_packs import sign_pack


@pytest.fixture(scope="session")
def foreign() -> SigningKey:
    """A key that nobody trusts."""
    return SigningKey.new()


@pytest.fixture
def path(tmp_path: Path, artifacts: tuple[Artifact, ...], key: SigningKey) -> Path:
    """The pack."""
    write_pack(path := tmp_path / "kernels.pack", artifacts)
    sign_pack(path, [key])
    return path
