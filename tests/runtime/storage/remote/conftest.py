"""Keys, a kernel that is requested, and what it is to run on."""

from __future__ import annotations

import pytest

from gemmill.emitters.emit import emit
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.remote.protocol import Machine, RequestedKernel


@pytest.fixture(scope="session")
def requested(artifact: Artifact) -> RequestedKernel:
    return RequestedKernel.of(emit(artifact.config), artifact.key)


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine("NVIDIA H200", ("sm90", "sm90a"), 132, (13, 0))
