"""Configs to CUDA C++: pure functions from a config to text. They know nothing of NVRTC or GPUs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gemmill.library.files import digest_of, shipped


def include_path() -> Path:
    """The folder that holds ``gemmill/**.cuh``; InstallationError where there is none."""
    return shipped(Path(__file__).resolve().parent / "include")


@cache
def headers_digest() -> str:
    """SHA-256 over the names and contents of every kernel header."""
    return digest_of(include_path(), "**/*.cuh")
