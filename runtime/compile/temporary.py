"""Temporary folders: private to their owner, locked while their process lives, and removed with it or by a later
process."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from gemmill.runtime.storage import file_locks

LOCK = "gemmill.lock"
"""The file that marks such a folder, and that its process locks."""
_NAME = re.compile(r"gemmill-(?:pch|pool)-[a-z0-9_]{8}")
_WITHIN = re.compile(rf"{_NAME.pattern}|[0-9a-f]{{16}}|gemmill\.pch|edg\d+_\d+")
"""Content of such folders: folders of other processes and of headers, headers, and temporary files of NVRTC."""
_TRIES = 3
"""Attempts to remove a folder: errors of network file systems may be temporary."""
_SETTLED_SECONDS = 60
"""A folder younger than this may belong to a process that has not locked it yet."""


class TemporaryFolder:
    """A new folder in TMPDIR, kept until :meth:`remove`.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, kind: Literal["pch", "pool"]) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._make(kind)
                return
            except FileNotFoundError:  # removed by a process with another clock before it was locked
                if not tries_left:
                    raise

    def _make(self, kind: str) -> None:
        # Like mkdtemp, but with a name that is known even if a signal ends this process while the folder is created.
        self.path = Path(tempfile.gettempdir(), f"gemmill-{kind}-{os.urandom(4).hex()}")
        try:
            self.path.mkdir(0o700)
            self.path.chmod(0o700)  # the umask may have removed more
            self._lock = file_locks.acquire(self.path / LOCK)
        except FileExistsError:  # another process's, by chance
            raise
        except BaseException:
            remove(self.path)
            raise

    def remove(self) -> None:
        """Remove the folder and everything in it."""
        remove(self.path)
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with suppress(OSError):
                file_locks.release(lock)


def remove(path: Path) -> None:
    """Remove the folder of a :class:`TemporaryFolder` of this process, or of the one that started it."""
    interruption: BaseException | None = None
    for _ in range(_TRIES):
        try:
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # rmtree does not ignore errors of all of its calls
            continue
        except BaseException as end:  # noqa: BLE001 (a signal: raised again when the folder is gone)
            interruption = end
    if interruption is not None:
        raise interruption


def sweep() -> None:
    """Remove the folders of this user's killed processes."""
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
    """Remove a folder unless its process lives. Files that such folders do not contain stay, and so does the folder."""
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
                folder = os.path.join(path, name)
                _empty(folder)
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, LOCK))
                os.rmdir(folder)
            else:
                os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
