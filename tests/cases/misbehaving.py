"""What a remote can do wrong, one row each: what it sends, what the client is to make of it, and how many requests that
takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, NamedTuple

from tests.cases.remotes import CLOSE, HANG, Honest, Parts, Request, Stop, http, sealed

from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.signatures import SigningKey, seal


class Case(NamedTuple):
    """One row."""

    answer: Callable[[Honest, Request], Parts]
    reason: str
    requests: int = 1


def _whole(honest: Honest, request: Request) -> bytes:
    return b"".join(part for part in honest(request) if isinstance(part, bytes))


def always(*parts: bytes | Stop) -> Callable[[Honest, Request], Parts]:
    """The same whatever is asked."""
    return lambda honest, request: parts


def of(path: str, change: Callable[[bytes], Parts]) -> Callable[[Honest, Request], Parts]:
    """What is sent for paths that begin so, made of what should be sent."""
    return lambda honest, request: change(_whole(honest, request)) if request.path.startswith(path) else honest(request)


def dripping(whole: bytes) -> Iterator[bytes]:
    """A byte now and then: no single wait is long."""
    for each in whole:
        yield bytes([each])
        time.sleep(0.02)


def flipped(whole: bytes) -> Parts:
    """One bit of the body, far from its ends."""
    head, _, body = whole.partition(b"\r\n\r\n")
    middle = len(body) // 2
    return [head, b"\r\n\r\n", body[:middle], bytes([body[middle] ^ 1]), body[middle + 1 :]]


def manifest_of(make: Callable[[Artifact, SigningKey], bytes]) -> Callable[[Honest, Request], Parts]:
    """Another manifest for a key that is asked for."""

    def answer(honest: Honest, request: Request) -> Parts:
        if request.path.startswith("/v1/kernels/"):
            return [http(200, make(honest.artifacts[0], honest.keys[0]))]
        return honest(request)

    return answer


def resealed(artifact: Artifact, key: SigningKey, **changes: Any) -> bytes:
    """A manifest of which something of the provenance is another, signed all the same."""
    manifest = KernelManifest.of(artifact)
    return seal(KERNEL, replace(manifest, provenance=replace(manifest.provenance, **changes)).to_bytes(), [key])


def instantiating(*events: object, done: bool = True) -> Callable[[Honest, Request], Parts]:
    """A remote that has nothing, and says this of what it is to make."""
    lines = [*events, *([{"event": "done", "ready": 0, "failed": 0, "pending": 0}] if done else [])]
    body = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)

    def answer(honest: Honest, request: Request) -> Parts:
        return [http(404) if request.method == "GET" else http(200, body)]

    return answer


def named(name: str, **event: object) -> Callable[[Honest, Request], Parts]:
    """An event of the kernel that is wanted."""
    return lambda honest, request: instantiating({"event": name, "kernel": honest.artifacts[0].name, **event})(
        honest, request
    )


def _endless(line: bytes) -> Iterator[bytes]:
    return repeat(line * 4096)


GET, BLOB = "/v1/kernels/", "/v1/blobs/"
OK = b"HTTP/1.1 200 OK\r\n"
CASES: dict[str, Case] = {
    "no answer": Case(always(HANG), "timeout"),
    "hangs amid headers": Case(always(OK + b"Content-Le", HANG), "timeout"),
    "hangs amid the manifest": Case(of(GET, lambda whole: [whole[:-9], HANG]), "timeout"),
    "hangs amid the blob": Case(of(BLOB, lambda whole: [whole[:-9], HANG]), "timeout", 2),
    "drips headers": Case(of(GET, dripping), "timeout"),
    "drips the blob": Case(of(BLOB, dripping), "timeout", 2),
    "says more than it sends": Case(always(http(200, b"{}", Content_Length=9)), "timeout"),
    "goes on saying 100": Case(lambda honest, request: _endless(b"HTTP/1.1 100 Continue\r\n\r\n"), "timeout"),
    "closes at once": Case(always(CLOSE), "closed", 2),
    "closes amid the manifest": Case(of(GET, lambda whole: [whole[:-9], CLOSE]), "closed", 2),
    "closes amid the blob": Case(of(BLOB, lambda whole: [whole[:-9], CLOSE]), "closed", 4),
    "closes amid a chunk": Case(always(OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{", CLOSE), "closed", 2),
    "cuts the length short": Case(always(http(200, b'{"type": "gemmill', Content_Length=9)), "untrusted"),
    "speaks something else": Case(always(b"SSH-2.0-OpenSSH_9.2\r\n", CLOSE), "garbage"),
    "random bytes": Case(always(bytes(range(256)) * 9, CLOSE), "garbage"),
    "a thousand headers": Case(always(OK + b"X: y\r\n" * 1000 + b"\r\n"), "garbage"),
    "an endless header": Case(lambda honest, request: [OK, *([b"X" * 65536] * 4), CLOSE], "garbage"),
    "no length": Case(always(http(200, b"", Content_Length="many"), CLOSE), "untrusted"),
    "flips a bit of the manifest": Case(of(GET, flipped), "untrusted"),
    "flips a bit of the blob": Case(of(BLOB, flipped), "damaged", 4),
    "sends another blob": Case(of(BLOB, lambda whole: [http(200, b"gemmill")]), "damaged", 4),
    "sends a compressed blob": Case(
        of(BLOB, lambda whole: [http(200, b"\x1f\x8b", Content_Encoding="gzip")]), "damaged", 4
    ),
    "unsigned": Case(manifest_of(lambda artifact, key: sealed(artifact, [])), "untrusted"),
    "signed by another": Case(manifest_of(lambda artifact, key: sealed(artifact, [SigningKey.new()])), "untrusted"),
    "signed as something else": Case(
        manifest_of(lambda artifact, key: seal("gemmill.pack/1", KernelManifest.of(artifact).to_bytes(), [key])),
        "untrusted",
    ),
    "nested JSON": Case(always(http(200, b"[" * 100_000)), "untrusted"),
    "of another text": Case(
        manifest_of(lambda artifact, key: resealed(artifact, key, source_digest="0" * 64)), "version"
    ),
    "of other headers": Case(manifest_of(lambda artifact, key: resealed(artifact, key, headers_digest="0")), "version"),
    "a manifest of a terabyte": Case(always(http(200, b"", Content_Length=1 << 40)), "too large"),
    "an endless manifest": Case(lambda honest, request: chain([OK + b"\r\n"], _endless(b"x" * 1024)), "too large"),
    "more blob than it said": Case(of(BLOB, lambda whole: [http(200, b"x" * (1 << 22))]), "too large", 2),
    "moved": Case(always(http(301, Location="http://192.0.2.1/")), "redirected"),
    "found elsewhere": Case(always(http(302, Location="/elsewhere")), "redirected"),
    "400": Case(always(http(400, b'{"error": {"code": "no", "message": "\x1b[2J"}}')), "unexpected"),
    "401": Case(always(http(401)), "unauthorised"),
    "403": Case(always(http(403)), "forbidden", 2),
    "404": Case(always(http(404)), "absent", 2),
    "a blob that is gone": Case(of(BLOB, lambda whole: [http(404)]), "absent", 4),
    "429": Case(always(http(429, Retry_After=7)), "busy"),
    "429 for ever": Case(always(http(429, Retry_After="9" * 400)), "busy"),
    "500": Case(always(http(500, b"<html>")), "server error"),
    "503": Case(always(http(503, Retry_After="soon")), "busy"),
    "600": Case(always(http(600)), "unexpected"),
    "cannot make it": Case(named("failed", error={"code": "compile", "message": "it spills"}), "failed", 2),
    "cannot make it now": Case(named("failed", error={"code": "queue_full", "retry_after": 3}), "busy", 2),
    "makes it too late": Case(named("compiling"), "pending", 2),
    "makes it with another toolchain": Case(named("resolved", key="0" * 64), "version", 2),
    "makes it unsigned": Case(named("ready", manifest={"type": "gemmill.kernel/1"}), "untrusted", 2),
    "makes another": Case(instantiating({"event": "compiling", "kernel": "another"}), "another", 2),
    "events that are none": Case(instantiating(b"done\n"), "garbage", 2),
    "events that are lists": Case(instantiating([1]), "garbage", 2),
    "events without end": Case(instantiating(done=False), "closed", 4),
    "POST: 409": Case(
        lambda honest, request: [http(404 if request.method == "GET" else 409)],
        "version",
        2,
    ),
    "POST: 405, as servers of files say": Case(
        lambda honest, request: [http(404 if request.method == "GET" else 405)],
        "absent",
        2,
    ),
}
