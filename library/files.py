"""Files: checked reads, atomic writes, and digests of contents."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gemmill.library.errors import InstallationError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20
"""Bytes that are read from a pipe at a time."""
_WRITER_SECONDS = 5.0
"""How long a read waits for a writer of a pipe."""
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def is_sha256(text: str) -> bool:
    """Whether a text is a SHA-256 in hex."""
    return _SHA256.fullmatch(text) is not None


def ending(path: Path | str) -> str:
    """The ending of a file's name, such as ``.onnx``: in lower case, since names are recognised in either."""
    return Path(path).suffix.lower()


def os_error_text(error: OSError) -> str:
    """The text of a system error in the form of gemmill's errors: the file first, without an error number."""
    words = error.strerror or str(error)
    return f"'{error.filename}': {words}" if error.filename and error.strerror else words


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Add the file name to a system error of a call that only has a file descriptor."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) and error.strerror:
            error.filename = str(path)
        raise


def shipped(folder: Path) -> Path:
    """A folder of data files that are installed with the code.

    Raises:
        InstallationError: NVRTC and others cannot open it, because gemmill is in an archive or lacks its data files.
    """
    if folder.is_dir():
        return folder
    archive = next((parent for parent in folder.parents if parent.is_file()), None)
    if archive:
        raise InstallationError(
            f"gemmill is imported from the archive {archive}, but compilers need its headers and manifests as files: "
            f"unpack the zip into a folder, and put that folder on the path instead"
        )
    raise InstallationError(
        f"{folder} is missing: this copy of gemmill lacks its data files. Install gemmill as a wheel; a frozen program "
        "must include its data files (PyInstaller: --collect-data gemmill)"
    )


def open_regular(path: Path, limit: int | None = None, *, private: bool = False) -> BinaryIO:
    """Open a regular file for reading. Unlike for a pipe, opening never waits for a writer.

    Args:
        path: the file.
        limit: the largest allowed size in bytes.
        private: require that the file is not a link, belongs to this user or root, and is not writable by others.

    Raises:
        OSError: the file cannot be opened or violates a condition; ``strerror`` states the reason.
    """

    def refuse(number: int, reason: str) -> OSError:
        return OSError(number, reason, str(path))

    links = os.O_NOFOLLOW if private else 0
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | links)
    except ValueError as error:  # not a valid file name
        raise refuse(errno.EINVAL, str(error)) from None
    except OSError as error:
        if links and error.errno == errno.ELOOP:
            raise refuse(errno.ELOOP, "is a link") from None
        raise
    try:
        with naming(path):
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                raise refuse(errno.EISDIR, "is a folder")
            if not stat.S_ISREG(status.st_mode):
                kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
                raise refuse(errno.EINVAL, f"is {kind}, not a regular file")
            if limit is not None and status.st_size > limit:
                raise refuse(errno.EFBIG, f"has {status.st_size:,} bytes, more than the {limit:,} it may have")
            if private and (reason := _not_private(status)):
                raise refuse(errno.EPERM, reason)
            return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _not_private(status: os.stat_result) -> str:
    """Why another user can have written a file; empty if no other user can."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}, neither to this one nor to root"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written to by others (mode {stat.S_IMODE(status.st_mode):03o})"
    return ""


def open_given(path: Path, limit: int) -> BinaryIO:
    """Open a file from a command line for reading: a regular file, or a pipe, which is first read to its end.

    Args:
        path: the file.
        limit: the largest allowed size in bytes.

    Raises:
        OSError: as for :func:`open_regular`; also if the pipe has no writer or exceeds the limit.
    """
    try:
        is_pipe = stat.S_ISFIFO(path.stat().st_mode)
    except ValueError:  # not a valid file name
        is_pipe = False
    if not is_pipe:
        return open_regular(path, limit)
    import tempfile  # imported here, because only pipes need it

    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller's)
    try:
        remaining = limit
        for chunk in _piped(path):
            if (remaining := remaining - len(chunk)) < 0:
                raise OSError(errno.EFBIG, f"is a pipe with more than the {limit:,} bytes it may have", str(path))
            copy.write(chunk)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return copy


def read_given(path: Path, limit: int) -> bytes:
    """The content of a file or pipe that :func:`open_given` opens; OSError as there."""
    with open_given(path, limit) as file:
        return _at_most(file, limit, path)


def _piped(path: Path) -> Iterator[bytes]:
    """The data of a pipe. If it has no writer yet, wait a moment for one."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _WRITER_SECONDS
        try:
            while not (chunk := os.read(handle, _CHUNK)):
                if time.monotonic() > until:
                    raise OSError(errno.EPIPE, "is a pipe that nobody writes to", str(path))
                time.sleep(0.01)
            yield chunk
        except BlockingIOError:  # the pipe has a writer that has not written yet
            pass
        os.set_blocking(handle, True)
        while chunk := os.read(handle, _CHUNK):
            yield chunk
    finally:
        os.close(handle)


def read_regular(path: Path, limit: int, *, private: bool = False) -> bytes:
    """The content of a file that :func:`open_regular` opens; OSError also if it grows beyond the limit meanwhile."""
    with open_regular(path, limit, private=private) as file:
        return _at_most(file, limit, path)


def _at_most(file: BinaryIO, limit: int, path: Path) -> bytes:
    with naming(path):
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"has more than the {limit:,} bytes it may have", str(path))
    return content


def publish(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file atomically: write a temporary file next to it, sync it, and rename it.

    Devices, pipes and streams of this process (``/dev/stdout``) are written directly. For a link, the target is
    replaced. A replaced file keeps its permissions.

    Args:
        path: the file.
        parts: its content, in pieces.

    Raises:
        OSError: writing fails; names the file.
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
            mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
            _replace(place, place.parent / f".gemmill-{os.urandom(8).hex()}", parts, mode)
    except OSError as error:
        error.filename = str(path)
        raise


def publish_private(folder: int, name: str, parts: Iterable[bytes], temporary: str) -> None:
    """Write a file that other users cannot read, atomically as :func:`publish` does.

    Links are not followed. An existing entry with the name is replaced, unless it is a non-empty folder.

    Args:
        folder: descriptor of its folder.
        name: its name in the folder.
        parts: its content, in pieces.
        temporary: the name of the temporary file, which remains if the writer is killed.

    Raises:
        OSError: writing fails, or the file system assigns the file to another user or makes it writable by others.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        os.rmdir(name, dir_fd=folder)
    _replace(name, temporary, parts, 0o600, folder)


def make_private(path: Path) -> None:
    """Create a folder and its missing parents, accessible only to this user regardless of the umask."""
    if path.is_dir():
        return
    if path.parent != path:
        make_private(path.parent)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    else:
        path.chmod(0o700)  # the umask can have removed permissions


def _stream(path: Path) -> int | None:
    """The descriptor of a path such as ``/dev/stdout``; None for other paths. Others can also write to its file."""
    text = os.path.abspath(path)
    if match := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", text):
        return int(match[1])
    return {"/dev/stdout": 1, "/dev/stderr": 2}.get(text)


def _replace(
    place: Path | str, temporary: Path | str, parts: Iterable[bytes], mode: int | None, folder: int | None = None
) -> None:
    """Write a temporary file with these permissions or the default ones, and rename it to its place."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:  # includes the call that opens the file, because a signal can end this process right after it
        handle = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            if folder is not None and (reason := _not_private(os.fstat(handle))):  # a later read would reject the file
                raise OSError(errno.EPERM, f"a file that is made here {reason}")
            file.writelines(parts)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, place, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:  # the temporary file of another process
        raise
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def digest_of(root: Path, *patterns: str) -> str:
    """SHA-256 over the names and contents of the files below a folder that match any of the patterns."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
