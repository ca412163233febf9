"""Emitters: pure functions from a config to CUDA C++ text. They use neither NVRTC nor a GPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gemmill.library.files import digest_of, shipped


def include_path() -> Path:
    """The folder with ``gemmill/**.cuh``; InstallationError if it is missing."""
    return shipped(Path(__file__).resolve().parent / "include")


@cache
def headers_digest() -> str:
    """SHA-256 over the names and contents of every kernel header."""
    return digest_of(include_path(), "**/*.cuh")
