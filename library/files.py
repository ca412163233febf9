"""Files: read if they are what they should be, written whole or not at all, told apart by what they hold."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
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
"""How long a pipe may have no writer before it counts as one that nobody writes to."""
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def is_sha256(text: str) -> bool:
    """Whether a text is a SHA-256 in hex."""
    return _SHA256.fullmatch(text) is not None


def os_error_text(error: OSError) -> str:
    """What the system says of a file, in the words of other errors: the file first, no number."""
    words = error.strerror or str(error)
    return f"'{error.filename}': {words}" if error.filename and error.strerror else words


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Have an error of the system say which file it is of, where the call knows only a descriptor."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) and error.strerror:
            error.filename = str(path)
        raise


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


def open_regular(path: Path, limit: int | None = None, *, private: bool = False) -> BinaryIO:
    """Open a regular file to read; never waits, as opening a pipe would, for somebody to write.

    Args:
        path: its place.
        limit: most bytes that it may have.
        private: it must be no link, belong to this user or to root, and nobody else may be able to write to it.

    Raises:
        OSError: it cannot be opened, or is not so; names the place, and says in ``strerror`` what it is.
    """

    def refuse(number: int, why: str) -> OSError:
        return OSError(number, why, str(path))

    links = os.O_NOFOLLOW if private else 0
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | links)
    except ValueError as error:  # no name of a file at all
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
            if private and (why := _not_private(status)):
                raise refuse(errno.EPERM, why)
            return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _not_private(status: os.stat_result) -> str:
    """Why somebody else may have written what a file holds; empty where nobody else can have."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}, neither to this one nor to root"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written to by others (mode {stat.S_IMODE(status.st_mode):03o})"
    return ""


def open_given(path: Path, limit: int) -> BinaryIO:
    """Open what a user names on a command line to read: a regular file, or a pipe, which is read to its end first.

    Args:
        path: its place.
        limit: most bytes that it may have.

    Raises:
        OSError: as for :func:`open_regular`; also where nobody writes to the pipe, or it holds too much.
    """
    try:
        is_pipe = stat.S_ISFIFO(path.stat().st_mode)
    except ValueError:  # no name of a file at all
        is_pipe = False
    if not is_pipe:
        return open_regular(path, limit)
    import tempfile  # which most readers do without

    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller's)
    try:
        left = limit
        for chunk in _piped(path):
            if (left := left - len(chunk)) < 0:
                raise OSError(errno.EFBIG, f"is a pipe with more than the {limit:,} bytes it may have", str(path))
            copy.write(chunk)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return copy


def read_given(path: Path, limit: int) -> bytes:
    """What a file or a pipe holds that :func:`open_given` opens; OSError as there."""
    with open_given(path, limit) as file:
        return _at_most(file, limit, path)


def _piped(path: Path) -> Iterator[bytes]:
    """What comes out of a pipe. One without a writer is given a moment to get one."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _WRITER_SECONDS
        try:
            while not (chunk := os.read(handle, _CHUNK)):
                if time.monotonic() > until:
                    raise OSError(errno.EPIPE, "is a pipe that nobody writes to", str(path))
                time.sleep(0.01)
            yield chunk
        except BlockingIOError:  # somebody may write, and has not yet
            pass
        os.set_blocking(handle, True)
        while chunk := os.read(handle, _CHUNK):
            yield chunk
    finally:
        os.close(handle)


def read_regular(path: Path, limit: int, *, private: bool = False) -> bytes:
    """What a file holds that :func:`open_regular` opens; OSError also where it gets past the limit meanwhile."""
    with open_regular(path, limit, private=private) as file:
        return _at_most(file, limit, path)


def _at_most(file: BinaryIO, limit: int, path: Path) -> bytes:
    with naming(path):
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"has more than the {limit:,} bytes it may have", str(path))
    return content


def publish(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file beside its place, sync it, and move it there: nobody sees half of it.

    What is no file, a device or a pipe, is written to as it is, and so is a stream of this process (``/dev/stdout``),
    wherever it goes; a link stays, and its target is the place. A file that is replaced keeps its permissions.

    Args:
        path: its place.
        parts: what it holds, one after the other.

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
            mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
            _replace(place, place.parent / f".gemmill-{secrets.token_hex(8)}", parts, mode)
    except OSError as error:
        error.filename = str(path)
        raise


def publish_private(folder: int, name: str, data: bytes, temporary: str) -> None:
    """Write a file that nobody else may read, as :func:`publish` does; nothing is followed, and what has its name is
    replaced unless it is a folder that holds something.

    Args:
        folder: descriptor of its folder.
        name: what it is called there.
        data: what it holds.
        temporary: what it is called meanwhile, and where the writer is killed.

    Raises:
        OSError: that fails, or the file system makes the file another user's, or lets others write to it.
    """
    try:
        _replace(name, temporary, [data], 0o600, folder)
    except IsADirectoryError:
        os.rmdir(name, dir_fd=folder)
        _replace(name, temporary, [data], 0o600, folder)


def make_private(path: Path) -> None:
    """Make a folder, and those above it that are not there, which nobody else may look into, whatever the umask."""
    if path.is_dir():
        return
    if path.parent != path:
        make_private(path.parent)
    with suppress(FileExistsError):
        path.mkdir(0o700)
        path.chmod(0o700)  # the umask may have taken more away


def _stream(path: Path) -> int | None:
    """The descriptor that a path names; None for others. What is behind it may be a file that others write to."""
    text = os.path.abspath(path)
    if found := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", text):
        return int(found[1])
    return {"/dev/stdout": 1, "/dev/stderr": 2}.get(text)


def _replace(
    place: Path | str, temporary: Path | str, parts: Iterable[bytes], mode: int | None, folder: int | None = None
) -> None:
    """Write a file under another name, with these permissions or the default ones, and move it to its place."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:  # of which opening it is a part: a signal may end this process as soon as the file is there
        handle = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            if folder is not None and (why := _not_private(os.fstat(handle))):  # so it would be refused when read
                raise OSError(errno.EPERM, f"a file that is made here {why}")
            file.writelines(parts)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, place, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:  # another's, by chance
        raise
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def digest_of(root: Path, *patterns: str) -> str:
    """SHA-256 over the names and contents of the files below a folder that any of the patterns matches."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
