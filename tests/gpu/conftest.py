"""Kernels of the GPU tests, compiled in parallel before the first of them."""

from __future__ import annotations

import pytest
from tests.cases.kernels import WGMMA, configs

from gemmill.runtime.registry import Registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    """A registry that holds every kernel of ``tests.cases.kernels.WGMMA``."""
    shared = Registry()
    shared.warm(configs(WGMMA))
    return shared
