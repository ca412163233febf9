"""The store: compiled kernels on disk, content-addressed and shared by processes.

The store is never trusted, and no problem with its folder may cost a kernel. An entry that is truncated, damaged,
foreign, not a regular file, owned by another user or stored under another kernel's key counts as missing and is
replaced. A folder that cannot be written, or is full, is not used after one warning. Entries appear completely or not
at all (temporary file, fsync, rename), so readers need no lock; the lock of a key only keeps processes from compiling
the same kernel twice.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmill.library.errors import StoreError, StoreWarning
from gemmill.library.files import open_regular, read_regular
from gemmill.runtime.settings import Settings, default_store
from gemmill.runtime.storage import file_locks
from gemmill.runtime.storage.artifact import MAX_BYTES, Artifact
from gemmill.runtime.storage.folder import ENTRIES, ENTRY_FOLDERS, NOTES, PACKS, StoreFile, StoreFolder

DEFAULT_MAX_BYTES = 4 << 30
"""Size limit unless ``GEMMILL_STORE_BYTES`` is set: some hundred thousand kernels."""
_SUFFIX = ".gemmill"
Notes = Literal["autotuned", "declared", "headers", "indexes", "keys", "packs", "remote", "tables", "verified"]
"""Folders of notes.

- ``autotuned``: results of autotuning.
- ``declared``: names of the kernels that manifests declare.
- ``headers``: digests of headers (runtime/compile/headers.py).
- ``indexes``: the newest index of packs (trust/signed_packs.py).
- ``keys``: keys of kernels by name (runtime/compile/kernel_keys.py).
- ``packs``: packs from registries, which count as entries to the size limit (oci/artifacts.py).
- ``remote``: keys of kernels from a remote (remote/protocol.py).
- ``tables``: tables of candidate kernels (runtime/select/kernels/kept_tables.py).
- ``verified``: verified kernels of packs (pack.py).
"""
_LOCK_SECONDS = 15
"""Most seconds to wait for a lock. A compilation takes a few seconds, so a longer holder is stuck, or as slow as this
process."""
_OnError = Callable[[OSError, Path], object]
_AHEAD_SECONDS = 86400
"""A time of use further in the future than this is invalid: the entry counts as the oldest."""
_MEASURED_BYTES = 16 << 20
"""The part of the limit whose folders a writer measures, so that a write reads no more entries where the limit is
larger."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a store."""

    key: str
    path: Path
    bytes: int
    used: float
    """Time of the last use, in seconds since the epoch; 0 where the file's time is invalid."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Size of a store."""

    path: Path
    entries: int
    """Number of kernels."""
    packs: int
    """Number of packs from registries."""
    bytes: int
    """Bytes of both."""
    max_bytes: int


class Store:
    """A folder of artifacts.

    Args:
        path: the folder, created at the first write; by default ``GEMMILL_STORE``, or the user's cache directory.
        max_bytes: size limit; the least recently used kernels and packs are evicted. Each folder of kernels, or group
            of them, has its share of the limit. By default ``GEMMILL_STORE_BYTES``, or 4 GiB.
    """

    def __init__(self, path: Path | str | None = None, max_bytes: int | None = None) -> None:
        settings = Settings.read()
        self.path = Path(path) if path is not None else settings.store or default_store()
        caps = (max_bytes, settings.store_bytes, DEFAULT_MAX_BYTES)
        self.max_bytes = next(cap for cap in caps if cap is not None)
        self.problem: str | None = None
        """Why nothing is written to the store; None while it is written."""
        self._folder = StoreFolder(self.path)

    def get(self, key: str) -> Artifact | None:
        """Return the artifact of a key; None where there is no valid entry."""
        try:
            return Artifact.from_bytes(self.read(key), key)
        except (OSError, ValueError):
            return None

    def read(self, key: str) -> bytes:
        """Return the bytes of an entry, unchecked, and record the use. OSError where there is none."""
        with open_regular(self._file(key), MAX_BYTES, private=True) as file:
            data = file.read()
            with suppress(OSError):  # the time of use only orders evictions
                os.utime(file.fileno())
            return data

    def drop(self, key: str) -> None:
        """Remove the entry of a key that its reader found invalid; OSError where that fails."""
        path = self._file(key)
        self._folder.remove(path.parent.name, path.name)

    def holds(self, key: str) -> bool:
        """Whether there is an entry of a key, valid or not."""
        return self._file(key).is_file()

    def has_room_for(self, artifacts: Iterable[Artifact]) -> bool:
        """Whether the size limit allows these artifacts in addition to the current entries."""
        return self.stats().bytes + sum(len(artifact.to_bytes()) for artifact in artifacts) <= self.max_bytes

    def put(self, key: str, artifact: Artifact) -> None:
        """Store an artifact; the first failure to write gives a warning."""
        self.write(key, artifact.to_bytes(), artifact.name)

    def write(self, key: str, data: bytes, name: str) -> None:
        """Store the bytes of an artifact, which the caller has checked; otherwise like :meth:`put`."""
        if len(data) > self.max_bytes:
            if self.max_bytes:
                self.report(f"{name} has {len(data):,} bytes, more than the store's limit of {self.max_bytes:,}")
        elif self._write(self._file(key), data):
            try:
                self._prune(key, self._report, self._group(key))
            except OSError as error:
                self._report(error, self.path)

    def get_or_make(self, key: str, make: Callable[[], Artifact]) -> tuple[Artifact, bool]:
        """Return the artifact of a key, made and stored if it is missing, and whether it was there.

        Of several processes that miss the same key, one makes it and the others wait. Errors of ``make`` propagate.
        """
        if (artifact := self.get(key)) is not None:
            return artifact, True
        with self.hold_lock(key):
            if (artifact := self.get(key)) is not None:
                return artifact, True
            artifact = make()
            self.put(key, artifact)
            return artifact, False

    @contextmanager
    def hold_lock(self, key: str) -> Iterator[None]:
        """Hold the lock of a key against other processes. Continue without it where locks cannot be created or the
        holder is stuck."""
        # At most 4,096 lock files: they cannot be removed safely, so one per key would accumulate.
        name = f"{key[:3]}.lock"
        handle = None
        with suppress(OSError), self._folder.opened("locks") as folder:
            handle = file_locks.acquire(name, seconds=_LOCK_SECONDS, folder=folder)
            if handle is None:
                logging.getLogger(__name__).warning(
                    "%s: another process has held this lock of the store for %d s; doing its work here too",
                    *(self.path / "locks" / name, _LOCK_SECONDS),
                )
        try:
            yield
        finally:
            if handle is not None:
                with suppress(OSError):
                    file_locks.release(handle)

    def get_note(self, kind: Notes, key: str) -> bytes:
        """Return the note of a key; OSError where there is none."""
        return read_regular(self._note(kind, key), MAX_BYTES, private=True)

    def put_note(self, kind: Notes, key: str, data: bytes) -> None:
        """Store a note, a small JSON text, replacing the one of the same key, until the store is cleared. The first
        failure gives a warning, except on a read-only file system: there, a missing note costs only time."""
        path = self._note(kind, key)
        try:
            self._folder.write(path.parent.name, path.name, [data])
        except OSError as error:
            if error.errno != errno.EROFS:
                self._report(error, path)

    def publish(self, kind: Notes, name: str, parts: Iterable[bytes]) -> None:
        """Write a file in pieces, which appears as a whole; OSError, which names it, where that fails."""
        try:
            self._folder.write(kind, name, parts)
        except OSError as error:
            error.filename = str(self.path / kind / name)
            raise

    def make_room_for(self, digest: str) -> None:
        """Evict the least recently used entries beyond the limit, except the pack of this digest, which was just
        written; the first failure gives a warning."""
        try:
            self._prune(digest, self._report)
        except OSError as error:
            self._report(error, self.path)

    def report(self, problem: str) -> None:
        """Warn that nothing is written to the store, the first time."""
        if self.problem is None:
            self.problem = problem
            _warn(f"nothing is written to the store: {problem}")

    def list(self) -> list[Entry]:
        """Return every entry, the least recently used first; entries that cannot be read give a warning and are left
        out."""
        try:
            return [*self._entries(self._warn_of)]
        except (FileNotFoundError, NotADirectoryError):  # nothing was written yet
            return []
        except OSError as error:
            self._warn_of(error, self.path)
            return []

    def load(self, entry: Entry) -> Artifact:
        """Return the artifact of an entry, without recording a use.

        Raises:
            ValueError: the entry is damaged.
            OSError: it cannot be read, or belongs to neither this user nor root.
        """
        return Artifact.from_bytes(read_regular(entry.path, MAX_BYTES, private=True), entry.key)

    def stats(self) -> StoreStats:
        """Return the numbers and the size of the kernels and packs."""
        entries, packs = self.list(), [*self._packs(self._warn_of)]
        size = sum(entry.bytes for entry in (*entries, *packs))
        return StoreStats(self.path, len(entries), len(packs), size, self.max_bytes)

    def verify(self) -> dict[Path, str]:
        """Read and verify every entry. Return the fault of each damaged one; empty if the store is sound."""
        from gemmill.runtime.storage.verification import (
            verify,  # deferred: entries are otherwise verified when they are compiled
        )

        faults = {}
        for entry in self.list():
            try:
                verify(self.load(entry))
            except FileNotFoundError:  # evicted in the meantime
                continue
            except OSError as error:
                faults[entry.path] = f"cannot be read: {error.strerror or error}"
            except ValueError as error:
                faults[entry.path] = str(error)
        return faults

    def clear(self) -> int:
        """Remove every entry and note; return the number of entries removed.

        Raises:
            StoreError: the folder is not a store.
            OSError: it cannot be read. Files that cannot be removed give a warning.
        """
        if not self._exists():
            return 0
        for note in self._folder.find(NOTES, self._warn_of):
            self._remove(self.path / note.folder / note.name, self._warn_of)
        return sum(self._remove(entry.path, self._warn_of) for entry in self._entries(self._warn_of))

    def prune(self) -> int:
        """Remove the files of killed writers and, if the limit is exceeded, the least recently used entries.

        Returns:
            The number of kernels and packs removed.

        Raises:
            StoreError, OSError: as for :meth:`clear`.
        """
        return self._prune("", self._warn_of) if self._exists() else 0

    def _exists(self) -> bool:
        """Whether the store exists; StoreError where the folder holds something else."""
        try:
            self._folder.check()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StoreError(
                f"{error.filename or self.path}: {error.strerror or error}; nothing was removed"
            ) from error
        return True

    def _group(self, key: str) -> Sequence[str] | None:
        """The folders that the writer of an entry measures, its own among them; None for all. They depend only on the
        limit, so that all groups together keep it."""
        count = 1
        while count < len(ENTRY_FOLDERS) and count * self.max_bytes < len(ENTRY_FOLDERS) * _MEASURED_BYTES:
            count *= 2
        first = int(key[:2], 16) // count * count
        return ENTRY_FOLDERS[first : first + count] if count < len(ENTRY_FOLDERS) else None

    def _prune(self, keep: str, on_error: _OnError, folders: Sequence[str] | None = None) -> int:
        """Remove the entries of some folders, or of all, beyond their share of the limit, except the one of a key. Each
        folder has an equal part of every pack."""
        self._folder.sweep(on_error, folders)
        part = 1 if folders is None else len(folders) / len(ENTRY_FOLDERS)
        sizes = {entry: float(entry.bytes) for entry in self._entries(on_error, folders)}
        sizes |= {pack: pack.bytes * part for pack in self._packs(on_error)}
        total = sum(sizes.values())
        removed = 0
        for entry in sorted(sizes, key=_by_use):
            if total <= self.max_bytes * part:
                break
            if entry.key != keep and self._remove(entry.path, on_error):
                removed += 1
                total -= sizes[entry]
                if entry.path.parent.name == "packs":  # its readers need the signature until it is gone
                    self._remove(entry.path.with_name(f"{entry.path.name}.sig"), on_error)
        return removed

    def _entries(self, on_error: _OnError, folders: Sequence[str] | None = None) -> tuple[Entry, ...]:
        """Return the kernels in some folders, or in all, the least recently used first."""
        return tuple(sorted(map(self._entry, self._folder.find(ENTRIES, on_error, folders)), key=_by_use))

    def _packs(self, on_error: _OnError) -> Iterator[Entry]:
        """Yield the packs from registries."""
        with suppress(FileNotFoundError, NotADirectoryError):  # nothing was written yet
            yield from map(self._entry, self._folder.find(PACKS, on_error, ("packs",)))

    def _entry(self, file: StoreFile) -> Entry:
        used, latest = file.status.st_mtime, time.time() + _AHEAD_SECONDS
        path = self.path / file.folder / file.name
        return Entry(path.stem, path, file.status.st_size, used if 0 <= used <= latest else 0.0)

    def _remove(self, path: Path, on_error: _OnError) -> bool:
        """Remove a file; return whether it is gone."""
        try:
            self._folder.remove(path.parent.name, path.name)
        except OSError as error:
            on_error(error, path)
            return False
        return True

    def _warn_of(self, error: OSError, path: Path) -> None:
        """Warn that a part of the store could not be read or removed."""
        _warn(f"the store cannot access {path}: {error.strerror or error}")

    def _write(self, path: Path, data: bytes) -> bool:
        """Write a file; return whether that succeeded."""
        try:
            self._folder.write(path.parent.name, path.name, [data])
        except OSError as error:
            self._report(error, path)
            return False
        return True

    def _report(self, error: OSError, path: Path) -> None:
        place = error.filename if isinstance(error.filename, str) and os.path.isabs(error.filename) else path
        self.report(f"{place}: {error.strerror or error}")

    def _note(self, kind: Notes, key: str) -> Path:
        return self.path / kind / f"{key}.json"

    def _file(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}{_SUFFIX}"


def _by_use(entry: Entry) -> tuple[float, str]:
    """Sort the least recently used first."""
    return entry.used, entry.key


def _warn(message: str) -> None:
    try:
        warnings.warn(message, StoreWarning, stacklevel=4)
    except StoreWarning:  # under -W error, no kernel may be lost for a warning
        logging.getLogger(__name__).warning(message)
