"""The folder of a store: which files in it belong to gemmill, and what may be done to them.

A mark identifies the folder. Without the mark, gemmill changes nothing in the folder; with it, only files with exactly
the names that gemmill uses. It follows no links inside: it opens each folder relative to its parent, and files relative
to their folders.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gemmill.library.files import make_private, publish_private, read_regular

MARK = "CACHEDIR.TAG"
"""A file that marks a folder as a cache; backups skip folders with one (https://bford.info/cachedir/)."""
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# gemmill: compiled kernels"
_TEXT = _SIGNATURE + b", made again where they are missing. `gemmill store` looks into this folder.\n"
ENTRIES = re.compile(r"(?P<folder>[0-9a-f]{2})/(?P=folder)[0-9a-f]{62}\.gemmill")
"""Compiled kernels, by folder and name."""
PACKS = re.compile(r"packs/[0-9a-f]{64}\.pack")
"""Packs from registries."""
ENTRY_FOLDERS = tuple(f"{number:02x}" for number in range(256))
"""Folders of compiled kernels. A kernel's folder is the first byte of a digest, so all hold about as many."""
NOTES = re.compile(
    r"(?:autotuned|declared|headers|indexes|packs|remote|tables)/[0-9a-f]{64}\.json|(?:keys|verified)/[0-9a-f]{64}"
    r"|packs/[0-9a-f]{64}\.pack(?:\.sig)?"
)
"""Notes: further data that the store keeps."""
_FOLDERS_OF_NOTES = "autotuned|declared|headers|indexes|keys|packs|remote|tables|verified"
_TEMPORARY = re.compile(rf"(?:\.|[0-9a-f]{{2}}|{_FOLDERS_OF_NOTES})/\.tmp-[0-9a-f]{{16}}")
"""Files that are being written, or whose writer was killed."""
_LOCKS = re.compile(r"locks/[0-9a-f]{3}\.lock")
_FOLDERS = re.compile(rf"[0-9a-f]{{2}}|{_FOLDERS_OF_NOTES}|locks")
_OF_FILE_SYSTEMS = re.compile(r"\./(?:lost\+found|\.nfs[0-9a-f]+)")
"""Entries that file systems create in folders."""
_STALE_SECONDS = 3600
"""A temporary file of this age was left by a killed writer."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """An entry of the folder with the name of a store's file."""

    folder: str
    name: str
    status: os.stat_result


class StoreFolder:
    """The folder of a store, which need not exist.

    Every method raises OSError where an operation of the file system fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raise OSError where the folder has no mark and holds anything that gemmill did not put there.

        Older stores have no mark; they pass if they hold nothing else.
        """
        with self._root() as root:
            # Check the mark last: another process may be creating it right now, and its file is among the names.
            if (foreign := _foreign_entry(root)) and not self._is_marked():
                raise OSError(
                    errno.ENOTEMPTY,
                    f"is not a gemmill store: it holds {foreign}; use an empty or a new folder",
                    str(self.path),
                )

    def write(self, folder: str, name: str, parts: Iterable[bytes]) -> None:
        """Write a file into a subfolder, in pieces, replacing a file of the same name."""
        with self.opened(folder) as handle:
            publish_private(handle, name, parts, _temporary_name())

    def append(self, folder: str, name: str, line: str) -> None:
        """Append a line to a file in a subfolder, creating the file if necessary."""
        with self.opened(folder) as handle:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, flags, 0o600, dir_fd=handle)
            try:
                os.write(file, f"\n{line}\n".encode())  # complete lines, whatever a killed writer left
            finally:
                os.close(file)

    @contextmanager
    def opened(self, folder: str) -> Iterator[int]:
        """Open a subfolder and yield its descriptor, creating and marking the folders if necessary."""
        make_private(self.path)
        if not self._is_marked():
            self.check()
            with self._root() as root:
                publish_private(root, MARK, [_TEXT], _temporary_name())
        with self._root() as root:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=root)
                os.chmod(folder, 0o700, dir_fd=root)  # the umask may have removed more
            with _opened(root, folder) as handle:
                yield handle

    def find(
        self,
        names: re.Pattern[str],
        on_error: Callable[[OSError, Path], object],
        folders: Iterable[str] | None = None,
    ) -> list[StoreFile]:
        """Return the entries with names of one kind, in all folders or in some. ``on_error`` receives the errors of
        folders and files that cannot be read."""
        files = []
        with self._root() as root:
            present = (".", *filter(_FOLDERS.fullmatch, sorted(os.listdir(root)))) if folders is None else folders
            for folder in present:
                try:
                    with _opened(root, folder) as handle:
                        for name in os.listdir(handle):
                            if names.fullmatch(f"{folder}/{name}"):
                                with suppress(FileNotFoundError):  # another process may be evicting
                                    files.append(StoreFile(folder, name, os.lstat(name, dir_fd=handle)))
                except (FileNotFoundError, NotADirectoryError):  # not a folder of the store
                    continue
                except OSError as error:
                    if error.errno != errno.ELOOP:  # neither is a link
                        on_error(error, self.path / folder)
        return files

    def remove(self, folder: str, name: str) -> None:
        """Remove a file, a link or an empty folder, unless another process was first."""
        with suppress(FileNotFoundError), self._root() as root, _opened(root, folder) as handle:
            try:
                os.unlink(name, dir_fd=handle)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=handle)

    def sweep(self, on_error: Callable[[OSError, Path], object], folders: Iterable[str] | None = None) -> None:
        """Remove the files of killed writers, in all folders or in some."""
        for file in self.find(_TEMPORARY, on_error, folders):
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


@contextmanager
def _opened(root: int, folder: str) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        yield handle
    finally:
        os.close(handle)


def _foreign_entry(root: int) -> str:
    """Return an entry of a folder whose name is not gemmill's; empty where there is none."""
    patterns = (ENTRIES, NOTES, _TEMPORARY, _LOCKS, _OF_FILE_SYSTEMS)
    for name in sorted(os.listdir(root)):
        inner = [f"./{name}"]
        if _FOLDERS.fullmatch(name):
            with suppress(NotADirectoryError), _opened(root, name) as handle:
                inner = [f"{name}/{file}" for file in os.listdir(handle)]
        for path in inner:
            if not any(pattern.fullmatch(path) for pattern in patterns):
                return path.removeprefix("./")
    return ""


def _temporary_name() -> str:
    return f".tmp-{os.urandom(8).hex()}"
