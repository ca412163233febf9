"""Files that are either whole or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def publish(path: Path, parts: Iterable[bytes], *, prefix: str | None = None, private: bool = False) -> None:
    """Write a file beside its place, sync it, and move it there: nobody sees half of it.

    What is no file, a device or a pipe, is written to as it is; a link stays, and its target is the place.

    Args:
        path: its place.
        parts: what it holds, one after the other.
        prefix: of the name beside, which a killed process leaves; default: from the file's own.
        private: nobody else may read it.

    Raises:
        OSError: that fails; names the place.

    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(b"".join(parts))
        else:
            place = path.resolve()
            _publish(place, parts, f".{place.name}-" if prefix is None else prefix, private)
    except OSError as error:
        error.filename = str(path)
        raise


def _publish(path: Path, parts: Iterable[bytes], prefix: str, private: bool) -> None:
    temporary = path.parent / f"{prefix}{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
