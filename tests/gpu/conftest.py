"""Kernels of the GPU tests, compiled in parallel before the first of them."""

from __future__ import annotations

import pytest

from gemmill.runtime.registry import Registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    """A registry that holds every kernel of ``harness.FAMILY``."""
    from tests.gpu.harness import FAMILY

    shared = Registry()
    shared.warm(FAMILY)
    return shared
