"""Precompiled headers: one private directory and one NVRTC heap for each process, a folder for each kind of source.

NVRTC makes no precompiled header, and does not say so, when its heap is too small: CuTe needs 278 MiB and the default
is 256. A precompiled header belongs to the process that made it (NVRTC maps it at a fixed address), so directories are
never shared. NVRTC keeps one header a folder and makes it anew when the next source is for another target or includes
other headers; so each target and set of headers has a folder of its own.

NVRTC maps a file in TMPDIR while it compiles with one, and is ended by SIGBUS, with its process, where that is full.
So there is a look first; where there is no room, or anything else is in the way, kernels are compiled without.
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
"""Address space for precompiled headers; pages are used only as far as headers fill them."""
ROOM_BYTES = 384 << 20
"""Room in TMPDIR that compiling with a header takes: 249 MB were measured where that is memory, half for the header and
half for the file that NVRTC maps, with NVRTC 12.9; and what may come meanwhile."""
KEPT = 4
"""Precompiled headers that a process keeps, of some 115 MiB each: one for each family of kernels that a GPU has."""

_given_up = False


def directory() -> Path:
    """The precompiled-header directory of this process: empty at first, removed when the process ends."""
    return _directory(os.getpid())  # a forked process gets one of its own


def folder(target: str, text: str) -> Path | None:
    """Where the header of a target and of what a source's text includes is, or will be; the least recent one may go.

    None where there is none to be.
    """
    if _given_up:
        return None
    includes = [line for line in text.splitlines() if line.startswith("#include")]
    kind = hashlib.sha256("\n".join([target, *includes]).encode()).hexdigest()[:16]
    try:
        path = directory() / kind
        path.mkdir(exist_ok=True)
        os.utime(path)
        kept = sorted(
            (other for other in directory().iterdir() if other.is_dir()), key=lambda at: at.stat().st_mtime_ns
        )
        for old in kept[:-KEPT]:
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
    """Bytes that may be written to files of a folder; OSError where that cannot be told."""
    status = os.statvfs(path)
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = status.f_bavail * status.f_frsize
    return room if most == resource.RLIM_INFINITY else min(room, most)


def no_room(room: int) -> str:
    """In words that TMPDIR has too little room."""
    place = tempfile.gettempdir()
    return f"{place} has room for {room >> 20:,} MiB, and each takes {ROOM_BYTES >> 20}; set TMPDIR to a larger folder"


def give_up(why: str = "") -> None:
    """Compile without precompiled headers in this process from now on, and say why."""
    global _given_up
    _given_up = True
    if why:
        logging.getLogger(__name__).warning("kernels compile without precompiled headers, which takes longer: %s", why)


@cache
def _directory(_pid: int) -> Path:
    temporary.sweep()
    made = temporary.TemporaryFolder("pch")
    # Finalize runs in multiprocessing's children too, where atexit does not.
    Finalize(None, made.remove, exitpriority=0)
    return made.path
