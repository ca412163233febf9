"""Where the store of a user is; knowing it takes less than using one."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def default_path() -> Path:
    """The user's cache directory; a private one under the temporary directory where the user has no home."""
    with suppress(RuntimeError):  # a user id without a passwd entry and without HOME, as in containers
        path = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gemmill"
        if path.is_absolute():
            return path
    import tempfile

    path = Path(tempfile.gettempdir()) / f"gemmill-{os.getuid()}"
    with suppress(OSError):
        path.mkdir(mode=0o700)
    try:
        status = path.lstat()
    except OSError:  # no temporary directory either: the first write will say so
        return path
    # Somebody else may have taken the name; what they file there is not ours to run.
    return path if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() else Path(tempfile.mkdtemp())
