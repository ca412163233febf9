"""Operators on the CPU: these tests need PyTorch, and no GPU."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def operators_on_the_cpu() -> None:
    if find_spec("torch"):
        import gemmill.torch

        gemmill.torch.run_on_cpu()
