"""Which kernels of a pack have been verified, remembered in the user's store.

A pack is known by the SHA-256 of its index, which gives that of each kernel, and both are compared whenever they are
read: so what counts as verified is its content, wherever the file lies and whatever its times say. The verdicts of
another version of gemmill, which computes launches otherwise, do not count. Where they cannot be kept, kernels are
verified again in each process.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from gemmill.library.files import read_regular
from gemmill.library.version import __version__
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.artifact import SCHEMA_VERSION
from gemmill.runtime.storage.folder import StoreFolder
from gemmill.runtime.storage.place import default_path

FOLDER = "verified"
"""Folder of a store: a file for each pack, a line in it for each kernel."""
_MAX_BYTES = 32 << 20
"""Most bytes of such a file: more than the index of a pack has."""


class Verdicts:
    """Names of the kernels of one pack that are what they say.

    Args:
        digest: SHA-256 of the pack's index.
        store: the folder of the store; by default the user's.
    """

    def __init__(self, digest: bytes, store: Path | None) -> None:
        text = f"{__version__} {SCHEMA_VERSION} {digest.hex()}"
        folder = store or Settings.read().store or default_path()
        self._folder, self._name = StoreFolder(folder), hashlib.sha256(text.encode()).hexdigest()
        self._names: set[str] = set()
        with suppress(OSError, UnicodeDecodeError):
            kept = read_regular(folder / FOLDER / self._name, _MAX_BYTES, private=True)
            self._names = {*kept.decode().split("\n")}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Remember that a kernel is sound."""
        self._names.add(name)
        with suppress(OSError):
            self._folder.append(FOLDER, self._name, name)
