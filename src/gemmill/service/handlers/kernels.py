"""Manifests and blobs: read, and taken in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from gemmill.runtime.storage.artifact import MAX_BYTES
from gemmill.runtime.storage.trust.envelope import MAX_SEALED_BYTES
from gemmill.service.bodies import malformed, read_body
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.storage.kernels import required
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_DIGEST = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
_FOR_EVER = "public, max-age=31536000, immutable"


def named(request: Request, what: str) -> str:
    """The SHA-256 in the path of a request; Refusal where it is none."""
    value = str(request.path_params[what])
    if not _DIGEST.fullmatch(value):
        raise malformed(f"{value!r:.100} is no {what}, which has 64 hex digits")
    return value


async def get_kernel(service: Service, request: Request, _: Caller) -> Response:
    """The signed manifest of a key."""
    key = named(request, "key")
    served = service.kernels.recent(key) or await service.kernels.find(key)
    service.metrics.kernels.labels("miss" if served is None else "hit").inc()
    served = required(served, key)
    etag = f'"{served.manifest.digest}"'
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(served.envelope, 200, {"ETag": etag, "Cache-Control": "no-cache"}, "application/json")


async def get_blob(service: Service, request: Request, _: Caller) -> Response:
    """The bytes of a kernel, or a range of them."""
    digest = named(request, "sha256")
    blob = await service.kernels.find_blob(digest)
    if blob is None:
        raise not_found(f"the blob {digest}")
    etag = f'"{digest}"'
    headers = {"ETag": etag, "Cache-Control": _FOR_EVER, "Accept-Ranges": "bytes"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    first, last = _range(request, len(blob), etag)
    if (first, last) != (0, len(blob) - 1) or _asks_range(request, etag):
        headers["Content-Range"] = f"bytes {first}-{last}/{len(blob)}"
        part = blob[first : last + 1]
        service.metrics.sent_bytes.inc(len(part))
        return Response(part, 206, headers, "application/octet-stream")
    service.metrics.sent_bytes.inc(len(blob))
    return Response(blob, 200, headers, "application/octet-stream")


async def put_blob(service: Service, request: Request, _: Caller) -> Response:
    """Take in a kernel's bytes, which are served once their manifest has come."""
    digest = named(request, "sha256")
    new = await service.kernels.take_blob(digest, await read_body(request, MAX_BYTES))
    if new:
        service.metrics.uploads.labels("blob").inc()
    return Response(status_code=201 if new else 200)


async def put_kernel(service: Service, request: Request, _: Caller) -> Response:
    """Take in a kernel's manifest, whose blob has come before."""
    key = named(request, "key")
    new = await service.kernels.take_manifest(key, await read_body(request, MAX_SEALED_BYTES))
    if new:
        service.metrics.uploads.labels("manifest").inc()
    return Response(status_code=201 if new else 200)


def _asks_range(request: Request, etag: str) -> bool:
    """Whether a range is asked for that is of what is here."""
    return "range" in request.headers and request.headers.get("if-range", etag) == etag


def _range(request: Request, size: int, etag: str) -> tuple[int, int]:
    """First and last byte that are asked for: one range; several are answered with all, as RFC 9110 allows."""
    found = _RANGE.fullmatch(request.headers.get("range", "")) if _asks_range(request, etag) else None
    if found is None or found[1] == found[2] == "":
        return 0, size - 1
    if not found[1]:
        first, last = size - min(size, int(found[2])), size - 1
    else:
        first, last = int(found[1]), min(size - 1, int(found[2]) if found[2] else size - 1)
    if first > last:
        raise Refusal(416, "range", f"{request.headers['range']:.60} of {size:,} bytes is none")
    return first, last
