"""Configs to CUDA C++: pure functions from a config to text. They know nothing of NVRTC or GPUs."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


def include_path() -> Path:
    """The folder that holds ``gemmill/**.cuh``."""
    return Path(__file__).resolve().parent / "include"


@cache
def headers_digest() -> str:
    """SHA-256 over the names and contents of every kernel header."""
    digest = hashlib.sha256()
    root = include_path()
    for header in sorted(root.rglob("*.cuh")):
        content = header.read_bytes()
        digest.update(f"{header.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
