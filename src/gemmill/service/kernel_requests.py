"""Endpoints that send and accept manifests and blobs of kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from gemmill.library.files import is_sha256
from gemmill.runtime.storage.artifact import MAX_BYTES
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES
from gemmill.service.bodies import malformed, read_body
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.served_kernels import required
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
_FOR_EVER = b"public, max-age=31536000, immutable"


class _BytesResponse(Response):
    """A response that encodes nothing, since most requests are hits and must be fast."""

    def __init__(self, body: bytes, status: int, *headers: tuple[bytes, bytes]) -> None:
        self.body, self.status_code, self.background = body, status, None
        size = () if status == 304 else ((b"content-length", b"%d" % len(body)),)
        self.raw_headers = [*headers, *size]


def digest_in_path(request: Request, what: str) -> str:
    """The SHA-256 in the path of a request; Refusal 422 if it is not valid."""
    value = str(request.path_params[what])
    if not is_sha256(value):
        raise malformed(f"Invalid {what} {value!r:.100}; expected 64 hex digits.")
    return value


async def get_kernel(service: Service, request: Request, _: Caller) -> Response:
    """Send the signed manifest of a key."""
    key = digest_in_path(request, "key")
    served = service.kernels.recent(key) or await service.kernels.find(key)
    (service.metrics.misses if served is None else service.metrics.hits).inc()
    served = required(served, key)
    etag = f'"{served.manifest.digest}"'
    headers = (b"etag", etag.encode()), (b"cache-control", b"no-cache")
    if etag in request.headers.get("if-none-match", ""):
        return _BytesResponse(b"", 304, *headers)
    return _BytesResponse(served.envelope, 200, *headers, (b"content-type", b"application/json"))


async def get_blob(service: Service, request: Request, _: Caller) -> Response:
    """Send the bytes of a kernel, or a range of them."""
    digest = digest_in_path(request, "sha256")
    blob = await service.kernels.find_blob(digest)
    if blob is None:
        raise not_found(f"the blob {digest}")
    etag = f'"{digest}"'
    headers = [(b"etag", etag.encode()), (b"cache-control", _FOR_EVER), (b"accept-ranges", b"bytes")]
    if etag in request.headers.get("if-none-match", ""):
        return _BytesResponse(b"", 304, *headers)
    headers.append((b"content-type", b"application/octet-stream"))
    status = 200
    if (byte_range := _range(request, len(blob), etag)) is not None:
        status = 206
        headers.append((b"content-range", b"bytes %d-%d/%d" % (byte_range.start, byte_range.stop - 1, len(blob))))
        blob = blob[byte_range.start : byte_range.stop]
    service.metrics.sent_bytes.inc(len(blob))
    return _BytesResponse(blob, status, *headers)


async def put_blob(service: Service, request: Request, _: Caller) -> Response:
    """Accept the bytes of a kernel; clients can download them once the manifest has arrived."""
    digest = digest_in_path(request, "sha256")
    new = await service.kernels.take_blob(digest, await read_body(request, MAX_BYTES))
    if new:
        service.metrics.uploads.labels("blob").inc()
    return Response(status_code=201 if new else 200)


async def put_kernel(service: Service, request: Request, _: Caller) -> Response:
    """Accept the manifest of a kernel whose blob has arrived before."""
    key = digest_in_path(request, "key")
    new = await service.kernels.take_manifest(key, await read_body(request, MAX_SEALED_BYTES))
    if new:
        service.metrics.uploads.labels("manifest").inc()
    return Response(status_code=201 if new else 200)


def _range(request: Request, size: int, etag: str) -> range | None:
    """The requested range; None for the whole blob.

    The server ignores requests of several ranges, as RFC 9110 allows, and ranges of another version (``If-Range``).
    """
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or match[0] == "bytes=-" or request.headers.get("if-range", etag) != etag:
        return None
    return _bytes_of(match, size)


def _bytes_of(match: re.Match[str], size: int) -> range:
    """The positions of a range such as ``0-99``, ``100-`` or ``-100``; Refusal 416 if it is empty."""
    if not match[1]:
        positions = range(size - min(size, int(match[2])), size)
    else:
        positions = range(int(match[1]), min(size, int(match[2]) + 1) if match[2] else size)
    if not positions:
        raise Refusal(416, "range", f"Empty range: {match[0]} of {size:,} bytes.")
    return positions
