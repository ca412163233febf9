"""What GPU tests share: kernels, compiled in parallel before the first of them, and the GPU's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.cases.kernels import WGMMA, configs

from gemmill.runtime.registry import Registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    """A registry that holds every kernel of ``tests.cases.kernels.WGMMA``."""
    shared = Registry()
    shared.warm(configs(WGMMA))
    return shared


MOST_KEPT = 1 << 30
"""Bytes that a worker's PyTorch may keep for its next test."""


@pytest.fixture(autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    """Workers share one GPU, and what the PyTorch of one keeps no other can have."""
    yield
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > MOST_KEPT:
        torch.cuda.empty_cache()
