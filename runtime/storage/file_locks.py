"""Locks between processes: ``flock`` of a file, which the system drops with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

_PAUSE_SECONDS = 0.05


def acquire(path: Path | str, *, seconds: float = 0, folder: int | None = None) -> int | None:
    """Take a lock; its file is made if it is not there, and stays.

    Args:
        path: place of the file.
        seconds: how long to wait for whoever holds it.
        folder: descriptor of the folder that the path is relative to.

    Returns:
        What :func:`release` takes; None where it is held by another for so long.

    Raises:
        OSError: it cannot be made or locked, or is no regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600, dir_fd=folder)
    deadline = time.monotonic() + seconds
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_PAUSE_SECONDS)
            else:
                return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def release(handle: int) -> None:
    """Let go of a lock, also where processes forked meanwhile have inherited it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)
