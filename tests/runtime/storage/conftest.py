"""A store of one kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def entry(store: Store, artifact: Artifact) -> Path:
    """The file of the artifact, stored."""
    store.put(artifact.key, artifact)
    (found,) = store.list()
    return found.path
