"""Lines of a file in the folder of a store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from gemmill.library.files import read_regular

MAX_LINES_BYTES = 256 << 20
"""Largest file of lines, in bytes: enough for more than a million kernels."""


class NoteLines:
    """Lines of a file of a store, which only grows. Where the file cannot be read or written, the lines exist only in
    this process.

    Args:
        store: path of the store.
        folder: the folder of notes.
        name: the file, a SHA-256.
    """

    def __init__(self, store: Path, folder: Literal["keys", "verified"], name: str) -> None:
        self._store, self._place = store, (folder, name)
        self.lines: list[str] = []
        with suppress(OSError, UnicodeDecodeError):
            self.lines = read_regular(store / folder / name, MAX_LINES_BYTES, private=True).decode().split("\n")

    def add(self, line: str) -> None:
        """Add one line."""
        self.lines.append(line)
        from gemmill.runtime.storage.folder import StoreFolder  # deferred: most processes add no line

        with suppress(OSError):
            StoreFolder(self._store).append(*self._place, line)
