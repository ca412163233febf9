"""Folders that all workers of a run share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gemmill.runtime.storage import file_locks

_MINUTES = 15


def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def locked(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A folder of the run, which one worker at a time changes."""
    (folder := root(tmp_path_factory) / name).mkdir(exist_ok=True)
    lock = file_locks.acquire(folder / "lock", seconds=60 * _MINUTES)
    assert lock is not None
    try:
        yield folder
    finally:
        file_locks.release(lock)
