"""The service's folder of state: small files by name, each written whole or not at all."""

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
"""Folders: envelopes by the key of their kernel, keys of kernels by the digest of their blob, blobs without a manifest
by their digest."""
UPLOADS_BYTES = 1 << 30
"""Most bytes of blobs that wait for their manifests."""
_UPLOADS_SECONDS = 3600
"""A blob whose manifest has not come for so long is removed."""
_log = logging.getLogger(__name__)


class Files:
    """Files of the folders of a state, by the SHA-256 that they are of."""

    def __init__(self, state: Path, metrics: Metrics) -> None:
        self.state = state
        self._metrics = metrics

    def read(self, kind: Kind, name: str) -> bytes | None:
        """What a file holds; None where it cannot be read."""
        try:
            return read_regular(self._path(kind, name), MAX_BYTES)
        except OSError:
            return None

    def write(self, kind: Kind, name: str, data: bytes) -> bool:
        """Whether a file could be written; a failure is counted, and told in the log."""
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
        """Remove a file, if it is there and can be."""
        with suppress(OSError):
            self._path(kind, name).unlink(missing_ok=True)

    def names(self, kind: Kind) -> Iterator[str]:
        """The names of all files of a kind."""
        for path in (self.state / kind).glob("??/*"):
            if not path.name.startswith("."):
                yield path.name

    def uploads_bytes(self) -> int:
        """Bytes of the uploads that wait, when those that have waited for too long are removed."""
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
