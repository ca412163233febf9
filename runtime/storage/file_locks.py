"""Locks between processes: ``flock`` of a file, which the system releases when the process that holds it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

_PAUSE_SECONDS = 0.05


def acquire(path: Path | str, *, seconds: float = 0, folder: int | None = None) -> int | None:
    """Take a lock. The lock file is created if necessary, and is never removed.

    Args:
        path: the lock file.
        seconds: how long to wait for another holder.
        folder: descriptor of the folder that the path is relative to.

    Returns:
        A handle for :func:`release`; None where another process holds the lock for that long.

    Raises:
        OSError: the file cannot be created or locked, or is not a regular file.
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
    """Release a lock, even if forked processes have inherited it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)
