"""Keys, a kernel that is wanted, and what it is to run on."""

from __future__ import annotations

import pytest

from gemmill.emitters.emit import emit
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.remote.wanted import Machine, Wanted
from gemmill.runtime.storage.trust.keys import SigningKey, TrustedKeys


@pytest.fixture(scope="session")
def key() -> SigningKey:
    return SigningKey.new()


@pytest.fixture(scope="session")
def trusted(key: SigningKey) -> TrustedKeys:
    return TrustedKeys((key.public,))


@pytest.fixture(scope="session")
def wanted(artifact: Artifact) -> Wanted:
    return Wanted.of(emit(artifact.config), artifact.key)


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine("NVIDIA H200", ("sm90", "sm90a"), 132, (13, 0))
