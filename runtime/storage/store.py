"""The store: compiled kernels on disk, content-addressed, shared by processes, never trusted and never in the way.

Nothing that happens to the directory may cost a kernel. An entry that is truncated, damaged, foreign or filed under
another kernel's key is a miss and is replaced; a directory that cannot be written, or is full, is left alone after one
warning. Entries appear whole (temporary file, fsync, rename), so readers need no lock; the lock of a key only keeps
processes from compiling the same kernel twice.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from filelock import FileLock, Timeout

from gemmill.library.files import publish
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.place import default_path

DEFAULT_MAX_BYTES = 4 << 30
"""Size cap unless ``GEMMILL_STORE_BYTES`` says otherwise: some hundred thousand kernels."""
_SUFFIX = ".gemmill"
_TEMPORARY = ".tmp-"
Notes = Literal["autotuned", "declared", "headers", "verified"]
"""Folders of what is kept beside kernels: what autotuning found, names of the kernels that manifests declare, digests
of headers (runtime/compile/headers.py), kernels of packs that were verified (runtime/storage/verdicts.py)."""
_LOCK_SECONDS = 300
"""No compilation takes this long: whoever still holds the lock is stuck, and waiting helps nobody."""
_STALE_SECONDS = 3600
"""A temporary file this old was left by a killed writer."""
_LOW_WATER = 0.9
"""Part of the cap that is kept when it is exceeded, so that not every further entry evicts."""


class StoreWarning(UserWarning):
    """The store is skipped; kernels are compiled again in every process."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a store."""

    key: str
    path: Path
    bytes: int
    used: float
    """Time of the last use, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Size of a store."""

    path: Path
    entries: int
    bytes: int
    max_bytes: int


class Store:
    """A directory of artifacts.

    Args:
        path: the directory, made when first written to; by default ``GEMMILL_STORE`` or the user's cache directory.
        max_bytes: size cap; entries used least recently are evicted. By default ``GEMMILL_STORE_BYTES`` or 4 GiB.
    """

    def __init__(self, path: Path | str | None = None, max_bytes: int | None = None) -> None:
        settings = Settings.read()
        self.path = Path(path) if path is not None else settings.store or default_path()
        caps = (max_bytes, settings.store_bytes, DEFAULT_MAX_BYTES)
        self.max_bytes = next(cap for cap in caps if cap is not None)
        self.problem: str | None = None
        """Why the store is not written to; None while it is."""
        self._until_prune = 0

    def get(self, key: str) -> Artifact | None:
        """The artifact of a key; None for a miss, and whatever is wrong with an entry is a miss."""
        path = self._file(key)
        try:
            artifact = _read(path, key)
        except (OSError, ValueError):
            return None
        with suppress(OSError):  # the time of use only orders evictions
            os.utime(path)
        return artifact

    def holds(self, key: str) -> bool:
        """Whether there is an entry of a key, sound or not."""
        return self._file(key).exists()

    def put(self, key: str, artifact: Artifact) -> None:
        """Keep an artifact; a failure to write is a warning, once."""
        data = artifact.to_bytes()
        if self._write(self._file(key), data):
            self._until_prune -= len(data)
            if self._until_prune < 0:
                self.prune()
                if self.max_bytes and not self.holds(key):
                    self.report(f"{artifact.name} has {len(data):,} bytes, too many for its cap of {self.max_bytes:,}")

    def get_or_make(self, key: str, make: Callable[[], Artifact]) -> tuple[Artifact, bool]:
        """The artifact of a key, made and kept if it is missing; and whether it was there.

        Of several processes that miss the same key one makes it and the others wait. What ``make`` raises is raised.
        """
        if (artifact := self.get(key)) is not None:
            return artifact, True
        with self._locked(key):
            if (artifact := self.get(key)) is not None:
                return artifact, True
            artifact = make()
            self.put(key, artifact)
            return artifact, False

    def get_note(self, kind: Notes, key: str) -> bytes:
        """What was kept under a key beside the kernels; OSError where nothing is."""
        return self._note(kind, key).read_bytes()

    def put_note(self, kind: Notes, key: str, data: bytes) -> None:
        """Keep a little, as JSON, in place of what had this key, until the store is cleared; a failure is a warning,
        once."""
        self._write(self._note(kind, key), data)

    def report(self, problem: str) -> None:
        """Warn that the store is skipped, the first time."""
        if self.problem is None:
            self.problem = problem
            warnings.warn(f"the store is skipped: {problem}", StoreWarning, stacklevel=3)

    def list(self) -> list[Entry]:
        """Every entry, the one used least recently first."""
        entries = []
        for path in self.path.glob(f"??/*{_SUFFIX}"):
            with suppress(OSError):  # another process may be evicting
                status = path.stat()
                entries.append(Entry(path.name.removesuffix(_SUFFIX), path, status.st_size, status.st_mtime))
        return sorted(entries, key=lambda entry: (entry.used, entry.key))

    def load(self, entry: Entry) -> Artifact:
        """The artifact of an entry, without counting as a use.

        Raises:
            ValueError: the entry is damaged.
            OSError: it cannot be read.
        """
        return _read(entry.path, entry.key)

    def stats(self) -> StoreStats:
        """Count and size of the entries."""
        entries = self.list()
        return StoreStats(self.path, len(entries), sum(entry.bytes for entry in entries), self.max_bytes)

    def verify(self) -> dict[Path, str]:
        """What is wrong with each damaged entry; empty if the store is sound. Reads and verifies every entry."""
        from gemmill.runtime.storage.verify import verify  # nobody else needs it here: who compiled it had it verified

        faults = {}
        for entry in self.list():
            try:
                verify(self.load(entry))
            except FileNotFoundError:  # evicted meanwhile
                continue
            except (OSError, ValueError) as error:
                faults[entry.path] = str(error)
        return faults

    def clear(self) -> int:
        """Remove every entry, and what is kept beside them; the number of entries removed."""
        for kind in get_args(Notes):
            for path in self.path.glob(f"{kind}/*"):
                _unlink(path)
        return sum(_unlink(entry.path) for entry in self.list())

    def prune(self) -> int:
        """Remove what killed writers left, and entries, least recently used first, if the cap is exceeded.

        Returns:
            The number of entries removed.
        """
        for folder in ("??", *get_args(Notes)):
            for path in self.path.glob(f"{folder}/{_TEMPORARY}*"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                        path.unlink()
        entries = self.list()
        total = sum(entry.bytes for entry in entries)
        removed = 0
        if total > self.max_bytes:
            for entry in entries:
                if total <= _LOW_WATER * self.max_bytes:
                    break
                removed += _unlink(entry.path)
                if not entry.path.exists():  # another process may have been first
                    total -= entry.bytes
        # Other processes write too: look again after a sixteenth of the cap, not only when this one has filled it.
        self._until_prune = max(0, min(self.max_bytes - total, self.max_bytes // 16))
        return removed

    def _write(self, path: Path, data: bytes) -> bool:
        """Whether it could be written."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            publish(path, [data], prefix=_TEMPORARY, private=True)
        except OSError as error:
            self.report(f"{path}: {error.strerror or error}")
            return False
        return True

    def _note(self, kind: Notes, key: str) -> Path:
        return self.path / kind / f"{key}.json"

    def _file(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}{_SUFFIX}"

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of a key, or go on without where locks cannot be made or their holder is stuck."""
        # 4,096 lock files at most: they cannot be removed safely, so one for each key would pile up.
        lock = FileLock(self.path / "locks" / f"{key[:3]}.lock", timeout=_LOCK_SECONDS)
        with suppress(OSError, NotImplementedError, Timeout):
            (self.path / "locks").mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire()
        try:
            yield
        finally:
            with suppress(OSError):
                lock.release()


def _read(path: Path, key: str) -> Artifact:
    artifact = Artifact.from_bytes(path.read_bytes())
    if artifact.key != key:
        raise ValueError(f"holds {artifact.name}, made otherwise than its key says")
    return artifact


def _unlink(path: Path) -> bool:
    with suppress(OSError):
        path.unlink()
        return True
    return False
