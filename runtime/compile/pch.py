"""Precompiled headers: one private folder and one NVRTC heap per process, with a subfolder for each kind of source.

NVRTC silently makes no precompiled header when its heap is too small: CuTe needs 278 MiB, and the default is 256 MiB. A
precompiled header belongs to the process that made it, because NVRTC maps it at a fixed address, so processes do not
share folders. NVRTC keeps one header per folder and replaces it when the next source has another target or includes
other headers; so each target and set of headers has its own folder.

While NVRTC compiles with a header, it maps a file in TMPDIR; where that is full, SIGBUS kills the process. So gemmill
checks the free space first. Without enough space, or after any other problem, it compiles without precompiled headers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import shutil
import tempfile
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

from gemmill.runtime.compile import temporary

HEAP_BYTES = 1 << 30
"""Address space for precompiled headers, in bytes; headers only use the pages that they fill."""
ROOM_BYTES = 384 << 20
"""Free bytes in TMPDIR for compiling with a header. 249 MB were measured with NVRTC 12.9, half for the header and half
for the file that NVRTC maps; the rest is a margin."""
KEPT = 4
"""Precompiled headers that a process keeps, of some 115 MiB each: one for each kernel family of a GPU."""

_given_up = False


def directory() -> Path:
    """Return the precompiled-header folder of this process, which is removed when the process ends."""
    return _directory(os.getpid())  # a forked process gets another one


def folder(target: str, text: str) -> Path | None:
    """Return the folder of the header for a target and the includes of a source; the least recently used one may be
    removed. None where precompiled headers are off."""
    if _given_up:
        return None
    includes = [line for line in text.splitlines() if line.startswith("#include")]
    kind = hashlib.sha256("\n".join([target, *includes]).encode()).hexdigest()[:16]
    try:
        path = directory() / kind
        path.mkdir(exist_ok=True)
        os.utime(path)
        headers = sorted(
            (other for other in directory().iterdir() if other.is_dir()), key=lambda entry: entry.stat().st_mtime_ns
        )
        for old in headers[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        header = sum(file.stat().st_size for file in path.iterdir())
        if (room := room_in(path)) + header < ROOM_BYTES:
            give_up(no_room(room))
            return None
    except OSError as error:
        give_up(f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}")
        return None
    return path


def room_in(path: Path | str) -> int:
    """Return the bytes that may be written to files in a folder; OSError where that is unknown."""
    status = os.statvfs(path)
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = status.f_bavail * status.f_frsize
    return room if most == resource.RLIM_INFINITY else min(room, most)


def no_room(room: int) -> str:
    """Return the message for too little space in TMPDIR."""
    place = tempfile.gettempdir()
    return f"{place} has {room >> 20:,} MiB free, and each needs {ROOM_BYTES >> 20} MiB; set TMPDIR to a larger folder"


def give_up(why: str = "") -> None:
    """Turn precompiled headers off in this process, and log the reason."""
    global _given_up
    _given_up = True
    if why:
        logging.getLogger(__name__).warning("compiling without precompiled headers, which takes longer: %s", why)


@cache
def _directory(_pid: int) -> Path:
    temporary.sweep()
    folder = temporary.TemporaryFolder("pch")
    # Finalize also runs in multiprocessing's children, where atexit does not.
    Finalize(None, folder.remove, exitpriority=0)
    return folder.path
