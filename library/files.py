"""Files that are either whole or not there, and what tells some from others."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gemmill.library.errors import InstallationError


def shipped(folder: Path) -> Path:
    """A folder of data that ships beside the code.

    Raises:
        InstallationError: it is none that NVRTC and others can open: gemmill is in an archive, or came without data.
    """
    if folder.is_dir():
        return folder
    archive = next((parent for parent in folder.parents if parent.is_file()), None)
    if archive:
        raise InstallationError(
            f"gemmill is imported from the archive {archive}, but its headers and manifests are files, which compilers "
            f"open by name: unpack the zip into a folder, and put that on the path in its place"
        )
    raise InstallationError(
        f"{folder} is not there: this copy of gemmill lacks files that it comes with. Install it as a wheel; "
        "frozen programs must take its data along (PyInstaller: --collect-data gemmill)"
    )


def publish(path: Path, parts: Iterable[bytes], *, prefix: str | None = None, private: bool = False) -> None:
    """Write a file beside its place, sync it, and move it there: nobody sees half of it.

    What is no file, a device or a pipe, is written to as it is, and so is a stream of this process (``/dev/stdout``),
    wherever it goes; a link stays, and its target is the place. A file that is replaced keeps its permissions.

    Args:
        path: its place.
        parts: what it holds, one after the other.
        prefix: of the name beside, which a killed process leaves; default: from the file's own.
        private: nobody else may read it.

    Raises:
        OSError: that fails; names the place.
    """
    try:
        if (stream := _stream(path)) is not None:
            sys.stdout.flush()
            with os.fdopen(os.dup(stream), "wb") as file:
                file.writelines(parts)
        elif path.exists() and not path.is_file():
            path.write_bytes(b"".join(parts))
        else:
            place = path.resolve()
            _publish(place, parts, f".{place.name}-" if prefix is None else prefix, private)
    except OSError as error:
        error.filename = str(path)
        raise


def _stream(path: Path) -> int | None:
    """The descriptor that a path names; None for others. What is behind it may be a file that others write to."""
    text = os.path.abspath(path)
    if found := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", text):
        return int(found[1])
    return {"/dev/stdout": 1, "/dev/stderr": 2}.get(text)


def _publish(path: Path, parts: Iterable[bytes], prefix: str, private: bool) -> None:
    temporary = path.parent / f"{prefix}{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if not private:
                with suppress(FileNotFoundError):
                    os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def digest_of(root: Path, *patterns: str) -> str:
    """SHA-256 over the names and contents of the files below a folder that any of the patterns matches."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
