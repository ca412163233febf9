"""One repository of a registry: the requests of the OCI distribution specification 1.1 that packs need.

A registry states with 401 which authentication it requires; credentials and tokens go to it and to the token server
that it names, never to the host of a redirect. Everything that comes is bounded by the size that the manifest states,
and checked against its digest.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import HTTPResponse
from typing import BinaryIO, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from gemmill.library.errors import SettingError
from gemmill.library.files import is_sha256
from gemmill.library.input.strict_json import parse
from gemmill.library.version import __version__
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.oci.credentials import credentials_for
from gemmill.runtime.storage.oci.manifest import INDEX, MANIFEST, MAX_MANIFEST_BYTES, Descriptor
from gemmill.runtime.storage.oci.reference import Reference
from gemmill.runtime.storage.remote.misses import Miss
from gemmill.runtime.storage.remote.refusals import pause_of, reason_of, words_of
from gemmill.runtime.storage.remote.transport import Address, Connections, Deadline

SECONDS = 30.0
"""Most seconds of a request, and of a blob beside those that its bytes may take."""
_LEAST_RATE = 1 << 20
"""Bytes in a second, at least, of a blob on its way."""
_CHUNK = 1 << 20
_MOST_TRIES = 3
_AGAIN = ("closed", "server error", "busy")
"""Reasons to try again."""
_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.5, 10.0
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_ANSWER_BYTES = 64 << 10
"""Largest error and largest token, in bytes."""
_CHALLENGE = re.compile(r'\b(basic|bearer)\s+((?:\w+="[^"]*"[,\s]*)+)', re.IGNORECASE)
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|\[::1\]")
_HOSTS = {"docker.io": "registry-1.docker.io"}
"""Hosts that are known by another name."""
_ACCEPT = {"Accept": f"{MANIFEST}, {INDEX}"}
_WAY = "run `docker login`, or set GEMMILL_OCI_TOKEN to HOST=USER:PASSWORD or HOST=TOKEN"
T = TypeVar("T")


class Repository:
    """One repository. It is used by one thread at a time. Every method raises Miss where the registry does not do its
    part.

    Args:
        reference: an artifact in it.
        push: whether to request the right to upload.
        seconds: most seconds of a request; a blob has another second for each MiB.
    """

    def __init__(self, reference: Reference, *, push: bool = False, seconds: float = SECONDS) -> None:
        host = _HOSTS.get(reference.host, reference.host)
        is_plain = _LOOPBACK.fullmatch(re.sub(r":\d+$", "", host)) or host in (Settings.read().oci_http or ())
        self._home = Address.of(f"{'http' if is_plain else 'https'}://{host}", "registry")
        self._base = f"{self._home}/v2/{reference.name}/"
        self._scope = f"repository:{reference.name}:{'pull,push' if push else 'pull'}"
        self._seconds = seconds
        self._connections: dict[Address, Connections] = {}
        self._authorization: str | None = None

    def digest_of(self, tag: str) -> str:
        """Return the digest, in hex, of the manifest that a tag names now."""

        def head() -> str | None:
            with self._answer("HEAD", f"manifests/{tag}", self._deadline(), headers=_ACCEPT) as response:
                return _digest_in(response)

        return with_retries(head) or hashlib.sha256(self._manifest(tag)).hexdigest()

    def manifest(self, digest: str) -> bytes:
        """Return a manifest by digest."""
        data = self._manifest(f"sha256:{digest}")
        if (got := hashlib.sha256(data).hexdigest()) != digest:
            raise Miss("damaged", f"{self._home} sends a manifest with digest sha256:{got} for sha256:{digest}")
        return data

    def blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield the bytes of a blob as they arrive. The generator ends normally only if they are those of its
        digest."""
        deadline, digest, left = self._deadline(descriptor.bytes), hashlib.sha256(), descriptor.bytes
        with self._answer("GET", f"blobs/sha256:{descriptor.digest}", deadline) as response:
            if response.length is not None and response.length != descriptor.bytes:
                says = f"{response.length:,} bytes, not the {descriptor.bytes:,} of the manifest"
                raise Miss("damaged", f"{self._home} sends blob sha256:{descriptor.digest} with {says}")
            while chunk := response.read(min(_CHUNK, left + 1)):
                if (left := left - len(chunk)) < 0:
                    says = f"more than the {descriptor.bytes:,} bytes of the manifest"
                    raise Miss("damaged", f"{self._home} sends blob sha256:{descriptor.digest} with {says}")
                digest.update(chunk)
                yield chunk
        if left:
            raise Miss("closed", f"{self._home} closed the connection {left:,} bytes before the end of a blob")
        if (got := digest.hexdigest()) != descriptor.digest:
            raise Miss("damaged", f"{self._home} sends a blob with digest sha256:{got} for sha256:{descriptor.digest}")

    def put_blob(self, descriptor: Descriptor, opened: Callable[[], BinaryIO]) -> bool:
        """Upload a blob, a file that ``opened`` opens, unless the repository has it. Return whether it was uploaded."""
        return with_retries(partial(self._put_blob, descriptor, opened))

    def put_manifest(self, tag: str, data: bytes) -> None:
        """Upload a manifest under a tag."""

        def put() -> None:
            headers = {"Content-Type": MANIFEST}
            with self._answer("PUT", f"manifests/{tag}", self._deadline(), headers, data, expects=201) as response:
                _check_digest(self._home, response, hashlib.sha256(data).hexdigest())

        with_retries(put)

    def _put_blob(self, descriptor: Descriptor, opened: Callable[[], BinaryIO]) -> bool:
        try:
            with self._answer("HEAD", f"blobs/sha256:{descriptor.digest}", self._deadline()):
                return False
        except Miss as miss:
            if miss.reason != "absent":
                raise
        with self._answer("POST", "blobs/uploads/", self._deadline(), expects=202) as response:
            place = urljoin(self._base, response.getheader("Location", ""))
        place += f"{'&' if '?' in place else '?'}{urlencode({'digest': f'sha256:{descriptor.digest}'})}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(descriptor.bytes)}
        with (
            opened() as body,
            self._answer("PUT", place, self._deadline(descriptor.bytes), headers, body, expects=201) as response,
        ):
            _check_digest(self._home, response, descriptor.digest)
        return True

    def _manifest(self, name: str) -> bytes:
        def get() -> bytes:
            with self._answer("GET", f"manifests/{name}", self._deadline(), headers=_ACCEPT) as response:
                return _read(response, MAX_MANIFEST_BYTES, f"the manifest {name} of {self._home}")

        return with_retries(get)

    def _deadline(self, size: int = 0) -> Deadline:
        return Deadline(self._seconds + size / _LEAST_RATE)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        headers: Mapping[str, str] = {},
        body: bytes | BinaryIO | None = None,
        expects: int = 200,
    ) -> Iterator[HTTPResponse]:
        """Send a request, authenticate if the registry requires it, follow redirects of reads, and yield the answer
        with the expected status."""
        url, is_challenged = urljoin(self._base, path), False
        for _ in range(_MOST_REDIRECTS + 2):
            is_home = _place(url)[0] == self._home
            authorization = self._authorization if is_home else None
            with self._send(method, url, headers, body, deadline, authorization) as response:
                if response.status == expects:
                    yield response
                    response.read(_MAX_ANSWER_BYTES)  # the rest, so that the connection can be reused
                    return
                if response.status in _REDIRECTS and method in ("GET", "HEAD"):
                    url = self._redirected(url, response)
                    continue
                if response.status != 401 or not is_home or is_challenged:
                    raise self._refusal(method, url, response)
                challenges = ", ".join(response.headers.get_all("WWW-Authenticate") or [])
                response.read(_MAX_ANSWER_BYTES)
            is_challenged, self._authorization = True, self._authorize(challenges, deadline)
            if body is not None and not isinstance(body, bytes):
                body.seek(0)
        raise Miss("redirected", f"{self._home} redirects more than {_MOST_REDIRECTS} times")

    @contextmanager
    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None,
        deadline: Deadline,
        authorization: str | None,
    ) -> Iterator[HTTPResponse]:
        address, path = _place(url)
        if address.scheme == "http" != self._home.scheme:
            raise Miss("redirected", f"{self._home} refers to {address}, which has no TLS")
        fixed = {"User-Agent": f"gemmill/{__version__}", "Accept-Encoding": "identity"}
        if authorization is not None:
            fixed["Authorization"] = authorization
        connections = self._connections.setdefault(address, Connections(address))
        with connections.answer(method, path, {**fixed, **headers}, body, deadline) as response:
            yield response

    def _redirected(self, url: str, response: HTTPResponse) -> str:
        response.read(_MAX_ANSWER_BYTES)
        if not (location := response.getheader("Location")):
            raise Miss("redirected", f"{self._home} redirects without a Location")
        return urljoin(url, location)

    def _authorize(self, challenges: str, deadline: Deadline) -> str:
        """Return the header that satisfies a challenge."""
        found = {
            each[1].lower(): dict(re.findall(r'(\w+)="([^"]*)"', each[2])) for each in _CHALLENGE.finditer(challenges)
        }
        credentials = credentials_for(self._home.authority)
        if (fields := found.get("bearer")) is not None:
            if credentials is not None and not credentials.user:
                return f"Bearer {credentials.secret}"
            return f"Bearer {self._token(fields, credentials and credentials.basic, deadline)}"
        if "basic" not in found:
            raise Miss("unauthorised", f"{self._home} requires authentication of an unknown kind: {challenges!r:.120}")
        if credentials is None or not credentials.user:
            raise Miss("unauthorised", f"{self._home} requires a user and a password: {_WAY}")
        return credentials.basic

    def _token(self, fields: Mapping[str, str], basic: str | None, deadline: Deadline) -> str:
        """Return a token of the token server that a challenge names."""
        realm = fields.get("realm", "")
        if urlsplit(realm).scheme not in ("http", "https"):
            raise Miss("unauthorised", f"{self._home} names {realm!r:.120} as its token server, which is no URL")
        query = {"scope": self._scope, **({"service": fields["service"]} if "service" in fields else {})}
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        with self._send("GET", url, {}, None, deadline, basic) as response:
            if response.status != 200:
                raise self._refusal("GET", realm, response)
            data = _read(response, _MAX_ANSWER_BYTES, f"the token of {realm}")
        try:
            answer = parse(data)
            token = answer.get("token") or answer["access_token"]
            if not (isinstance(token, str) and token.isascii() and token.isprintable()):
                raise ValueError("the token is not a line of ASCII")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Miss("garbage", f"{realm} does not answer with a token: {error!r:.120}") from None
        return token

    def _refusal(self, method: str, url: str, response: HTTPResponse) -> Miss:
        """Return the miss of an answer with an unexpected status."""
        reason = reason_of(response.status)
        says = f"{method} {urlsplit(url)._replace(query='').geturl()} answers {response.status}"
        try:
            errors = parse(response.read(_MAX_ANSWER_BYTES))["errors"]
            says += words_of(errors[0])
        except (IndexError, KeyError, TypeError, ValueError):
            pass
        if reason in ("unauthorised", "forbidden"):
            says += f": {_WAY}"
        return Miss(reason, says, pause_of(response.getheader("Retry-After")))


def with_retries(call: Callable[[], T]) -> T:
    """Return the result of a call. After a failure that may pass, call again, a few times."""
    for tried in range(1, _MOST_TRIES + 1):
        try:
            return call()
        except Miss as miss:
            if miss.reason not in _AGAIN or tried == _MOST_TRIES:
                raise
            time.sleep(min(_PAUSE_SECONDS * tried if miss.pause is None else miss.pause, _MOST_PAUSE_SECONDS))
    raise AssertionError  # the last try returned or raised


def _place(url: str) -> tuple[Address, str]:
    """Return the server of a URL, and what to request from it."""
    try:
        parts = urlsplit(url)
        server = Address.of(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", "registry")
    except (SettingError, ValueError) as error:
        raise Miss(
            "redirected", f"the registry refers to {url!r:.120}, which is not a URL that gemmill uses: {error}"
        ) from None
    return server, f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"


def _read(response: HTTPResponse, most: int, what: str) -> bytes:
    data = response.read(most + 1)
    if len(data) > most:
        raise Miss("too large", f"{what} has more than the limit of {most:,} bytes")
    if response.length:
        raise Miss("closed", f"{what} ended {response.length:,} bytes before its end")
    return data


def _digest_in(response: HTTPResponse) -> str | None:
    """Return the digest that an answer states, in hex; None where it states none of SHA-256."""
    algorithm, _, digest = response.getheader("Docker-Content-Digest", "").partition(":")
    return digest if algorithm == "sha256" and is_sha256(digest) else None


def _check_digest(home: Address, response: HTTPResponse, digest: str) -> None:
    """Raise Miss where a registry states another digest for an upload."""
    if (stated := _digest_in(response)) not in (None, digest):
        raise Miss("damaged", f"{home} received sha256:{stated}, but sha256:{digest} was sent")
