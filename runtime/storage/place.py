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

    # Somebody else may have taken a name; what they file there is not ours to run.
    user = Path(tempfile.gettempdir()) / f"gemmill-{os.getuid()}"
    for path in (user, *(user.with_name(f"{user.name}-{i}") for i in range(1, 100))):
        with suppress(OSError):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                return path
    return user  # that it cannot be made, the first write will say
