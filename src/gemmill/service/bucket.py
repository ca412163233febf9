"""A bucket that backs the store on disk: S3, GCS, Azure, or a folder, through obstore. Errors count as misses.

Objects have the paths of the protocol, ``v1/kernels/KEY`` and ``v1/blobs/SHA256``, so that a client can read a public
bucket like a server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from gemmill.library.errors import SettingError
from gemmill.runtime.storage.artifact import MAX_BYTES
from gemmill.service.metrics import Metrics

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Kind = Literal["kernels", "blobs"]
_SECONDS = 10.0
"""Time limit for an operation, including retries."""
_MISSING_SECONDS = 5.0
"""How long a miss is cached."""
_MISSING = 10_000
"""Maximum number of cached misses."""
_AT_ONCE = 32
"""Maximum number of concurrent operations."""
_log = logging.getLogger(__name__)


class Bucket:
    """A bucket, or a prefix of one.

    Args:
        url: such as ``s3://bucket/prefix``; credentials come from the environment, as for the provider's own tools.

    Raises:
        SettingError: the URL is invalid.
    """

    def __init__(self, url: str, metrics: Metrics) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            self._store: ObjectStore = from_url(
                url, retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=_SECONDS)}
            )
        except (BaseError, ValueError) as error:
            raise SettingError(f"--bucket {url}: {error}") from None
        self.url = url
        self._metrics = metrics
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def get(self, kind: Kind, name: str) -> bytes | None:
        """The content of an object; None if it does not exist or cannot be read."""
        path = f"v1/{kind}/{name}"
        if time.monotonic() - self._missing.get(path, -_MISSING_SECONDS) < _MISSING_SECONDS:
            return None
        try:
            async with self._turns, asyncio.timeout(_SECONDS):
                answer = await self._store.get_async(path)
                if answer.meta["size"] > MAX_BYTES:
                    raise ValueError(f"{answer.meta['size']:,} bytes, more than {MAX_BYTES:,}")
                data = bytes(await answer.bytes_async())
        except FileNotFoundError:
            self._count("get", "missing")
            self._missing[path] = time.monotonic()
            if len(self._missing) > _MISSING:
                self._missing.popitem(last=False)
            return None
        except Exception as error:  # noqa: BLE001 (every error of the network or obstore counts as a miss)
            self._failed("get", path, error)
            return None
        self._count("get", "ok")
        return data

    async def put(self, kind: Kind, name: str, data: bytes) -> bool:
        """Write an object; returns whether that succeeded."""
        path = f"v1/{kind}/{name}"
        try:
            async with self._turns, asyncio.timeout(_SECONDS):
                await self._store.put_async(path, data)
        except Exception as error:  # noqa: BLE001
            self._failed("put", path, error)
            return False
        self._count("put", "ok")
        self._missing.pop(path, None)
        return True

    def _failed(self, operation: str, path: str, error: Exception) -> None:
        self._count(operation, "failed")
        _log.warning("bucket: %s %s: %s", operation, path, str(error).partition("\n")[0][:300] or type(error).__name__)

    def _count(self, operation: str, outcome: str) -> None:
        self._metrics.bucket.labels(operation, outcome).inc()
