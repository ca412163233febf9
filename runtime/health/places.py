"""Where gemmill writes: whether it may, whether there is room, and whether files can be locked there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gemmill.library.errors import GemmillError
from gemmill.runtime.compile import pch
from gemmill.runtime.health.finding import Finding
from gemmill.runtime.storage import locks
from gemmill.runtime.storage.store import Store

STORE_BYTES = 16 << 20
"""Room for a hundred kernels."""


def places(store: Path | None) -> Iterator[Finding]:
    """The folder of temporary files, and the store."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        yield Finding("temporary files", "wrong", str(error), "set TMPDIR to a folder that can be written")
    else:
        fault = _fault(folder, pch.ROOM_BYTES)
        advice = f"{fault}; set TMPDIR to another folder" if fault else ""
        yield Finding("temporary files", "wrong" if fault else "ok", str(folder), advice)
    try:
        yield _store(store)
    except (GemmillError, OSError) as error:
        yield Finding("store", "wrong", str(store or ""), f"{error}; set GEMMILL_STORE to a folder that can be written")


def _store(path: Path | None) -> Finding:
    stats = (store := Store(path)).stats()
    detail = f"{stats.path}: {stats.entries} kernels, {stats.bytes:,} of at most {stats.max_bytes:,} bytes"
    existing = next(folder for folder in (store.path, *store.path.parents) if os.path.lexists(folder))
    if fault := _fault(existing, STORE_BYTES):
        advice = f"{fault}, so nothing is kept; set GEMMILL_STORE to another folder"
        return Finding("store", "wrong", detail, advice)
    return Finding("store", "ok", detail)


def _fault(folder: Path, room: int) -> str:
    """What is wrong with a folder that is to be written; empty where nothing is. Leaves nothing there."""
    try:
        with tempfile.TemporaryDirectory(prefix="gemmill-doctor-", dir=folder) as scratch:
            try:
                if (handle := locks.acquire(Path(scratch) / "lock")) is not None:
                    locks.release(handle)
            except OSError as error:
                return f"files in {folder} cannot be locked ({error}): several processes would compile one kernel"
        free = pch.room_in(folder)
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror or error})"
    if free < room:
        return f"{folder} has room for {free >> 20} MiB only; {room >> 20} are needed"
    return ""
