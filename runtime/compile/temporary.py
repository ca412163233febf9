"""Temporary folders: of their owner alone, locked as long as their process lives, removed with it or by a later one."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from gemmill.runtime.storage import file_locks

LOCK = "gemmill.lock"
"""The file that marks such a folder, and that its process has locked."""
_NAME = re.compile(r"gemmill-(?:pch|pool)-[a-z0-9_]{8}")
_WITHIN = re.compile(rf"{_NAME.pattern}|[0-9a-f]{{16}}|gemmill\.pch|edg\d+_\d+")
"""What such folders hold: folders of other processes and of headers, headers, and what NVRTC writes meanwhile."""
_TRIES = 3
"""How often a folder is tried to be removed: what a network's file system answers once, it need not answer again."""
_SETTLED_SECONDS = 60
"""A folder younger than this may belong to a process that has not locked it yet."""


class TemporaryFolder:
    """A new folder in TMPDIR, kept until :meth:`remove`.

    Raises:
        OSError: none can be made.
    """

    def __init__(self, kind: Literal["pch", "pool"]) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._make(kind)
                return
            except FileNotFoundError:  # swept by a process with another clock, before it was locked
                if not left:
                    raise

    def _make(self, kind: str) -> None:
        # As mkdtemp does, but with a name that is known when a signal ends this process while the folder is made.
        self.path = Path(tempfile.gettempdir(), f"gemmill-{kind}-{secrets.token_hex(4)}")
        try:
            self.path.mkdir(0o700)
            self.path.chmod(0o700)  # the umask may have taken more away
            self._lock = file_locks.acquire(self.path / LOCK)
        except FileExistsError:  # another's, by chance
            raise
        except BaseException:
            remove(self.path)
            raise

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        remove(self.path)
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with suppress(OSError):
                file_locks.release(lock)


def remove(path: Path) -> None:
    """Remove the folder that a :class:`TemporaryFolder` of this process, or of the one that started it, has made."""
    interruption: BaseException | None = None
    for _ in range(_TRIES):
        try:
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # which rmtree does not ignore from all of its calls
            continue
        except BaseException as end:  # noqa: BLE001 (a signal: raised when the folder is gone)
            interruption = end
    if interruption is not None:
        raise interruption


def sweep() -> None:
    """Remove what processes of this user that were killed have left."""
    with suppress(OSError):
        folder = tempfile.gettempdir()
        for name in filter(_NAME.fullmatch, os.listdir(folder)):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            settled = abs(time.time() - status.st_mtime) > _SETTLED_SECONDS
            if settled and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                with suppress(OSError):
                    _sweep(path)


def _sweep(path: str) -> None:
    """Remove a folder unless its process lives; what such folders do not hold stays, and the folder with it."""
    lock = os.path.join(path, LOCK)
    if os.path.lexists(lock):
        if (handle := file_locks.acquire(lock)) is None:
            return
        try:
            _empty(path)
            os.unlink(lock)
        finally:
            file_locks.release(handle)
    os.rmdir(path)


def _empty(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in filter(_WITHIN.fullmatch, os.listdir(handle)):
            if stat.S_ISDIR(os.lstat(name, dir_fd=handle).st_mode):
                within = os.path.join(path, name)
                _empty(within)
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(within, LOCK))
                os.rmdir(within)
            else:
                os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
