"""Kernels that tests of the runtime share, compiled once and kept in the store of the test run; and a signing key."""

from __future__ import annotations

import pytest

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys

NAMES = (
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x32x64_2x1_cooperative_s4_m8_k1_linear",
)


@pytest.fixture(scope="session")
def configs() -> tuple[GemmConfig, ...]:
    return tuple(parse_name(name) for name in NAMES)


@pytest.fixture(scope="session")
def artifacts(configs: tuple[GemmConfig, ...]) -> tuple[Artifact, ...]:
    registry = Registry(manifests=())
    return tuple(registry.get(config) for config in configs)


@pytest.fixture(scope="session")
def artifact(artifacts: tuple[Artifact, ...]) -> Artifact:
    return artifacts[0]


@pytest.fixture(scope="session")
def key() -> SigningKey:
    return SigningKey.new()


@pytest.fixture(scope="session")
def trusted(key: SigningKey) -> TrustedKeys:
    return TrustedKeys((key.public,))
