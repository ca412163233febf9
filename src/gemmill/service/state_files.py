"""Small files in the state folder of the service, written atomically."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from gemmill.library.files import make_private, os_error_text, publish, read_regular
from gemmill.runtime.storage.artifact import MAX_BYTES
from gemmill.service.metrics import Metrics

Kind = Literal["manifests", "blobs", "uploads"]
"""Folders. ``manifests``: envelopes, by the key of the kernel. ``blobs``: keys of kernels, by the digest of the blob.
``uploads``: blobs without a manifest, by digest."""
UPLOADS_BYTES = 1 << 30
"""Maximum size of all blobs that wait for their manifests."""
_UPLOADS_SECONDS = 3600
"""Age at which a blob without a manifest is removed."""
_log = logging.getLogger(__name__)


class Files:
    """The files in the folders of the state, by SHA-256."""

    def __init__(self, state: Path, metrics: Metrics) -> None:
        self.state = state
        self._metrics = metrics

    def read(self, kind: Kind, name: str) -> bytes | None:
        """The content of a file; None if it cannot be read."""
        try:
            return read_regular(self._path(kind, name), MAX_BYTES)
        except OSError:
            return None

    def write(self, kind: Kind, name: str, data: bytes) -> bool:
        """Write a file; returns whether that succeeded. Failures are counted and logged."""
        path = self._path(kind, name)
        try:
            make_private(path.parent)
            publish(path, [data])
        except OSError as error:
            self._metrics.write_failures.inc()
            _log.error("%s", os_error_text(error))
            return False
        return True

    def remove(self, kind: Kind, name: str) -> None:
        """Remove a file; errors are ignored."""
        with suppress(OSError):
            self._path(kind, name).unlink(missing_ok=True)

    def names(self, kind: Kind) -> Iterator[str]:
        """The names of all files of a kind."""
        for path in (self.state / kind).glob("??/*"):
            if not path.name.startswith("."):
                yield path.name

    def uploads_bytes(self) -> int:
        """Remove uploads that are too old; returns the total size of the others in bytes."""
        total = 0
        for name in self.names("uploads"):
            with suppress(OSError):
                status = self._path("uploads", name).stat()
                if time.time() - status.st_mtime > _UPLOADS_SECONDS:
                    self.remove("uploads", name)
                else:
                    total += status.st_size
        return total

    def _path(self, kind: Kind, name: str) -> Path:
        return self.state / kind / name[:2] / name
