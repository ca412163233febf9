"""Selectors that tests of selection share."""

from __future__ import annotations

import pytest
from tests.cases.manifests import shipped_kernels
from tests.runtime.select.problems import H200

from gemmill.library.config.model import GemmConfig
from gemmill.runtime.select.selector import Selector


@pytest.fixture(scope="session")
def kernels() -> dict[str, GemmConfig]:
    return dict(shipped_kernels("bf16"))


@pytest.fixture(scope="session")
def selector(kernels: dict[str, GemmConfig]) -> Selector:
    return Selector(kernels, H200)


@pytest.fixture(scope="session")
def varied(kernels: dict[str, GemmConfig]) -> Selector:
    return Selector(kernels, H200, varies=True)
