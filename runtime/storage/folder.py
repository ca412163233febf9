"""The folder of a store: which files in it are gemmill's, and what may be done to them.

It bears a mark. Without one nothing in it is changed; with it, nothing but what has exactly the names that gemmill
gives. No link within it is followed: folders are opened one in the other, and files named relative to them.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmill.library.files import make_private, publish_private, read_regular

MARK = "CACHEDIR.TAG"
"""A file that says whose a folder is; backups leave out folders with one (https://bford.info/cachedir/)."""
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# gemmill: compiled kernels"
_TEXT = _SIGNATURE + b", made again where they are missing. `gemmill store` looks into this folder.\n"
ENTRIES = re.compile(r"(?P<folder>[0-9a-f]{2})/(?P=folder)[0-9a-f]{62}\.gemmill")
"""Compiled kernels, by folder and name."""
NOTES = re.compile(
    r"(?:autotuned|declared|headers|indexes|remote|tables)/[0-9a-f]{64}\.json|(?:keys|verified)/[0-9a-f]{64}"
)
"""What is kept beside them."""
_FOLDERS_OF_NOTES = "autotuned|declared|headers|indexes|keys|remote|tables|verified"
_TEMPORARY = re.compile(rf"(?:\.|[0-9a-f]{{2}}|{_FOLDERS_OF_NOTES})/\.tmp-[0-9a-f]{{16}}")
"""What is being written, or was when its writer was killed."""
_LOCKS = re.compile(r"locks/[0-9a-f]{3}\.lock")
_FOLDERS = re.compile(rf"[0-9a-f]{{2}}|{_FOLDERS_OF_NOTES}|locks")
_OF_FILE_SYSTEMS = re.compile(r"\./(?:lost\+found|\.nfs[0-9a-f]+)")
"""What file systems put into folders by themselves."""
MAX_LINES_BYTES = 256 << 20
"""Most bytes of a file of lines: more than a million kernels take."""
_STALE_SECONDS = 3600
"""A temporary file this old was left by a killed writer."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """What has the name of a file of a store."""

    folder: str
    name: str
    status: os.stat_result


class StoreFolder:
    """The folder of a store, which need not be there.

    Every method raises OSError where the file system does not do what it takes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raises OSError where it holds something that gemmill did not put there, and bears no mark.

        Stores of before bear none: those that hold nothing else pass.
        """
        with self._root() as root:
            # The mark is looked for last: another process may just be putting it there, and it is among the names.
            if (foreign := _foreign(root)) and not self._is_marked():
                raise OSError(
                    errno.ENOTEMPTY,
                    f"is no store of gemmill's, and holds {foreign}; name a folder that is empty or not there yet",
                    str(self.path),
                )

    def write(self, folder: str, name: str, data: bytes) -> None:
        """Write a file, in place of what has its name, into a folder within."""
        with self.opened(folder) as handle:
            publish_private(handle, name, data, _temporary_name())

    def append(self, folder: str, name: str, line: str) -> None:
        """Write a line behind those of a file, which is made if it is not there, into a folder within."""
        with self.opened(folder) as handle:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, flags, 0o600, dir_fd=handle)
            try:
                os.write(file, f"\n{line}\n".encode())  # whole lines, whatever a killed writer left
            finally:
                os.close(file)

    @contextmanager
    def opened(self, folder: str) -> Iterator[int]:
        """Descriptor of a folder within; both are made and marked if they are not there."""
        make_private(self.path)
        if not self._is_marked():
            self.check()
            with self._root() as root:
                publish_private(root, MARK, _TEXT, _temporary_name())
        with self._root() as root:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=root)
                os.chmod(folder, 0o700, dir_fd=root)  # the umask may have taken more away
            with _within(root, folder) as handle:
                yield handle

    def find(self, names: re.Pattern[str], on_error: Callable[[OSError, Path], object]) -> list[StoreFile]:
        """What has names of one kind. What cannot be read, a folder or a file's status, is told to ``on_error``."""
        files = []
        with self._root() as root:
            for folder in (".", *filter(_FOLDERS.fullmatch, sorted(os.listdir(root)))):
                try:
                    with _within(root, folder) as handle:
                        for name in os.listdir(handle):
                            if names.fullmatch(f"{folder}/{name}"):
                                with suppress(FileNotFoundError):  # another process may be evicting
                                    files.append(StoreFile(folder, name, os.lstat(name, dir_fd=handle)))
                except (FileNotFoundError, NotADirectoryError):  # no folder of the store
                    continue
                except OSError as error:
                    if error.errno != errno.ELOOP:  # a link is none either
                        on_error(error, self.path / folder)
        return files

    def remove(self, folder: str, name: str) -> None:
        """Remove a file, a link, or an empty folder, unless another process was first."""
        with suppress(FileNotFoundError), self._root() as root, _within(root, folder) as handle:
            try:
                os.unlink(name, dir_fd=handle)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=handle)

    def sweep(self, on_error: Callable[[OSError, Path], object]) -> None:
        """Remove what killed writers left."""
        for file in self.find(_TEMPORARY, on_error):
            if abs(time.time() - file.status.st_mtime) > _STALE_SECONDS:
                try:
                    self.remove(file.folder, file.name)
                except OSError as error:
                    on_error(error, self.path / file.folder / file.name)

    @contextmanager
    def _root(self) -> Iterator[int]:
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield handle
        finally:
            os.close(handle)

    def _is_marked(self) -> bool:
        try:
            return read_regular(self.path / MARK, 1 << 12, private=True).startswith(_SIGNATURE)
        except FileNotFoundError:
            return False


class NoteLines:
    """Lines of a file of a store, which only grows. Where it cannot be read or written they are this process's alone.

    Args:
        store: path of the store.
        folder: the folder of notes.
        name: the file, a SHA-256.
    """

    def __init__(self, store: Path, folder: Literal["keys", "verified"], name: str) -> None:
        self._folder, self._place = StoreFolder(store), (folder, name)
        self.lines: list[str] = []
        with suppress(OSError, UnicodeDecodeError):
            self.lines = read_regular(store / folder / name, MAX_LINES_BYTES, private=True).decode().split("\n")

    def add(self, line: str) -> None:
        """Have one line more."""
        self.lines.append(line)
        with suppress(OSError):
            self._folder.append(*self._place, line)


@contextmanager
def _within(root: int, folder: str) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        yield handle
    finally:
        os.close(handle)


def _foreign(root: int) -> str:
    """Something in a folder that does not have a name of gemmill's; empty where there is nothing."""
    patterns = (ENTRIES, NOTES, _TEMPORARY, _LOCKS, _OF_FILE_SYSTEMS)
    for name in sorted(os.listdir(root)):
        inner = [f"./{name}"]
        if _FOLDERS.fullmatch(name):
            with suppress(NotADirectoryError), _within(root, name) as handle:
                inner = [f"{name}/{file}" for file in os.listdir(handle)]
        for path in inner:
            if not any(pattern.fullmatch(path) for pattern in patterns):
                return path.removeprefix("./")
    return ""


def _temporary_name() -> str:
    return f".tmp-{secrets.token_hex(8)}"


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
