"""Calls of JAX on the CPU: these tests need JAX, and no GPU. They see two devices."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"


@pytest.fixture(scope="session", autouse=True)
def calls_on_the_cpu() -> None:
    if find_spec("jax"):
        import gemmill.jax

        gemmill.jax.run_on_cpu()
