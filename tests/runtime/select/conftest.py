"""Selectors that tests of selection share."""

from __future__ import annotations

import pytest
from tests.runtime.select.problems import H200

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.manifest.load import load_manifest
from gemmill.runtime.select.selector import Selector


@pytest.fixture(scope="session")
def kernels() -> dict[str, GemmConfig]:
    return {kernel_name(config): config for config in load_manifest("bf16").expand()}


@pytest.fixture(scope="session")
def selector(kernels: dict[str, GemmConfig]) -> Selector:
    return Selector(kernels, H200)


@pytest.fixture(scope="session")
def varied(kernels: dict[str, GemmConfig]) -> Selector:
    return Selector(kernels, H200, varies=True)
