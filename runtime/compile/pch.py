"""Precompiled headers: one private directory and one NVRTC heap for each process, a folder for each kind of source.

NVRTC makes no precompiled header, and does not say so, when its heap is too small: CuTe needs 278 MiB and the default
is 256. A precompiled header belongs to the process that made it (NVRTC maps it at a fixed address), so directories are
never shared. NVRTC keeps one header a folder and makes it anew when the next source is for another target or includes
other headers; so each target and set of headers has a folder of its own. Each directory holds a lock as long as its
process lives, as does the directory in which the workers of a pool have theirs; directories that a killed process left
are removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

from filelock import FileLock, Timeout

HEAP_BYTES = 1 << 30
"""Address space for precompiled headers; pages are used only as far as headers fill them."""
KEPT = 4
"""Precompiled headers that a process keeps, of some 115 MiB each: one for each family of kernels that a GPU has."""
_PREFIX = "gemmill-pch-"
POOL_PREFIX = "gemmill-pool-"
"""Of the directory of a pool."""
_SETTLED_SECONDS = 60
"""A directory younger than this may belong to a process that has not locked it yet."""


def directory() -> Path:
    """The precompiled-header directory of this process: empty at first, removed when the process ends."""
    return _directory(os.getpid())  # a forked process gets one of its own


def folder(target: str, text: str) -> Path:
    """Where the header of a target and of what a source's text includes is, or will be; the least recent one may go."""
    includes = [line for line in text.splitlines() if line.startswith("#include")]
    kind = hashlib.sha256("\n".join([target, *includes]).encode()).hexdigest()[:16]
    path = directory() / kind
    path.mkdir(exist_ok=True)
    os.utime(path)
    kept = sorted((other for other in directory().iterdir() if other.is_dir()), key=lambda at: at.stat().st_mtime_ns)
    for old in kept[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


@cache
def _directory(_pid: int) -> Path:
    sweep()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = FileLock(path / "lock")
    lock.acquire()
    # Finalize runs in multiprocessing's children too, where atexit does not.
    Finalize(None, _remove, args=(path, lock), exitpriority=0)
    return path


def _remove(path: Path, lock: FileLock) -> None:
    lock.release()
    shutil.rmtree(path, ignore_errors=True)


def sweep() -> None:
    """Remove what killed processes of this user left behind."""
    folder = Path(tempfile.gettempdir())
    for path in (*folder.glob(f"{_PREFIX}*"), *folder.glob(f"{POOL_PREFIX}*")):
        try:
            status = path.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _SETTLED_SECONDS and path.is_dir():
                with FileLock(path / "lock", timeout=0):
                    shutil.rmtree(path, ignore_errors=True)
        except (OSError, Timeout):
            continue
