"""The requests of the protocol, one function each, and the meaning of each answer."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from gemmill.emitters.emit import EmittedSource
from gemmill.library.config.names import formats
from gemmill.library.errors import TrustError
from gemmill.library.input.strict_json import parse
from gemmill.library.version import __version__
from gemmill.runtime.settings import TOKEN
from gemmill.runtime.storage.artifact import SCHEMA_VERSION, Artifact, Provenance
from gemmill.runtime.storage.remote.misses import Miss
from gemmill.runtime.storage.remote.refusals import pause_of, reason_of, words_of
from gemmill.runtime.storage.remote.transport import Connections, Deadline
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, SigningKey, TrustedKeys, open_sealed, seal

Put = Literal["stored", "there"]
"""Result of an upload."""
_NO_KEY: Final = "0" * 64
"""A key that no kernel has, for checking whether the remote answers."""
_MAX_ERROR_BYTES = 64 << 10
"""Most bytes read from an error answer; for longer ones the connection is closed."""
_MAX_EVENTS_BYTES = 2 * MAX_SEALED_BYTES
_WAIT = 0.8
"""Share of the remaining time in which the remote must answer whether it compiled a kernel."""


class Protocol:
    """The requests to one remote. Every method raises Miss for any other answer than the one that it expects.

    Args:
        url: URL of the remote, for messages.
        connections: connections to it.
        token: sent with every request; a file is read each time.
        trusted: the keys whose signatures count; None: no signature is needed.
        count: receives the requests sent and the bytes received.
    """

    def __init__(
        self,
        url: str,
        connections: Connections,
        token: str | Path | None,
        trusted: TrustedKeys | None,
        count: Callable[[str, int], None],
    ) -> None:
        self._url, self._connections, self._token, self._trusted, self._count = url, connections, token, trusted, count

    def manifest(self, requested: RequestedKernel, machine: Machine, deadline: Deadline) -> KernelManifest:
        """Return the manifest of a kernel whose key is known."""
        with self._answer("GET", f"/v1/kernels/{requested.key}", deadline) as response:
            sealed = self._body(response, MAX_SEALED_BYTES)
        return requested.manifest(sealed, self._trusted, machine)

    def blob(self, manifest: KernelManifest, deadline: Deadline) -> Artifact:
        """Return the kernel of a manifest, verified."""
        with self._answer("GET", f"/v1/blobs/{manifest.digest}", deadline) as response:
            blob = self._body(response, manifest.bytes)
        try:
            return manifest.artifact(blob)
        except TrustError as error:
            raise Miss("damaged", f"{self._url}: {error}") from error

    def instantiate(self, requested: RequestedKernel, machine: Machine, deadline: Deadline) -> KernelManifest:
        """Return the manifest of a kernel that the remote has, or compiles during this call."""
        arch = formats(requested.name)[0]
        gpu = {"name": machine.gpu, "arch": machine.archs[-1], "sm_count": machine.sms} if arch in machine.archs else {}
        request = {
            "kernels": [requested.name],
            "problems": [],
            "gemmill": __version__,
            "headers": requested.headers_digest,
            "gpu": gpu or {"name": arch, "arch": arch},  # a kernel for another machine
            "driver_cuda": machine.cuda,
            "wait": round(_WAIT * deadline.left(), 3),
        }
        manifest: KernelManifest | None = None
        with self._answer("POST", "/v1/instantiate", deadline, json.dumps(request).encode()) as response:
            for event in self._events(response):
                kind = event.get("event")
                if kind == "done":
                    continue  # read to the end, so that the connection can be reused
                if event.get("kernel") != requested.name:
                    raise Miss("another", f"{self._url} answered a request for {requested.name} with another kernel")
                if requested.key and event.get("key", requested.key) != requested.key:
                    raise Miss(
                        "version", f"{self._url} compiles {requested.name} with another toolchain than this machine"
                    )
                if kind == "failed":
                    raise self._compile_miss(requested, event.get("error"))
                if kind == "ready":
                    sealed = json.dumps(event.get("manifest")).encode()
                    manifest = requested.manifest(sealed, self._trusted, machine)
        if manifest is None:
            raise Miss("pending", f"{self._url} did not compile {requested.name} in time")
        return manifest

    def put(self, artifact: Artifact, keys: Sequence[SigningKey], deadline: Deadline) -> Put:
        """Upload a kernel that the remote does not have: first the blob, then the manifest, so that every manifest has
        a blob."""
        with self._request("GET", f"/v1/kernels/{artifact.key}", deadline) as response:
            is_there = response.status == 200
            self._drain(response)
        if is_there:
            return "there"
        blob, manifest = artifact.to_bytes(), KernelManifest.of(artifact)
        self._put(f"/v1/blobs/{manifest.digest}", blob, deadline)
        try:
            self._put(f"/v1/kernels/{manifest.key}", seal(KERNEL, manifest.to_bytes(), keys), deadline)
        except Miss as miss:
            if miss.reason == "forbidden" and not keys:
                says = f"{miss.says}; the upload is unsigned: set GEMMILL_REMOTE_SIGN, or pass --sign"
                raise Miss(miss.reason, says, miss.pause) from None
            raise
        return "stored"

    def probe(self, deadline: Deadline) -> None:
        """Check that the remote answers a request for a kernel that nobody has as expected."""
        with self._request("GET", f"/v1/kernels/{_NO_KEY}", deadline) as response:
            if (miss := self._status_miss(response)) is not None and miss.reason not in ("absent", "forbidden"):
                raise miss

    def _put(self, path: str, body: bytes, deadline: Deadline) -> None:
        with self._request("PUT", path, deadline, body) as response:
            miss = self._status_miss(response)
            if miss is not None and response.status != 412:  # 412: it is there already
                raise miss
            self._drain(response)

    @contextmanager
    def _answer(self, method: str, path: str, deadline: Deadline, body: bytes | None = None) -> Iterator[HTTPResponse]:
        """Send a request and yield the answer, which is not a refusal."""
        with self._request(method, path, deadline, body) as response:
            if (miss := self._status_miss(response)) is not None:
                raise miss
            yield response

    @contextmanager
    def _request(self, method: str, path: str, deadline: Deadline, body: bytes | None = None) -> Iterator[HTTPResponse]:
        headers = {"User-Agent": f"gemmill/{__version__}", "Accept-Encoding": "identity"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {_token(self._token)}"
        if method == "PUT":
            headers["If-None-Match"] = "*"
        if body is not None:
            headers["Content-Type"] = "application/octet-stream" if "/blobs/" in path else "application/json"
        self._count("requests", 1)
        with self._connections.answer(method, path, headers, body, deadline) as response:
            yield response

    def _body(self, response: HTTPResponse, most: int) -> bytes:
        """Return the body of an answer."""
        if (response.length or 0) > most:
            raise Miss("too large", f"{self._url} sends {response.length:,} bytes; the limit is {most:,}")
        data = response.read(most + 1)
        self._count("bytes", len(data))
        if len(data) > most:
            raise Miss("too large", f"{self._url} sends more than the limit of {most:,} bytes")
        if response.length:
            raise Miss("closed", f"{self._url} closed the connection {response.length:,} bytes before the end")
        return data

    def _events(self, response: HTTPResponse) -> Iterator[dict[str, Any]]:
        """Yield the events of an answer, one mapping per line; the last is ``done``."""
        bytes_left, is_done = _MAX_EVENTS_BYTES, False
        while line := response.readline(bytes_left + 1):
            self._count("bytes", len(line))
            if (bytes_left := bytes_left - len(line)) < 0:
                raise Miss("too large", f"{self._url} sends more than the limit of {_MAX_EVENTS_BYTES:,} bytes")
            try:
                event = parse(line)
            except ValueError as error:
                raise Miss("garbage", f"{self._url} sends events that are not JSON: {error}") from error
            if not isinstance(event, dict):
                raise Miss("garbage", f"{self._url} sends {event!r:.80} as an event")
            is_done = event.get("event") == "done"
            yield event
        if not is_done:
            raise Miss("closed", f"{self._url} closed the connection before the last event")

    def _status_miss(self, response: HTTPResponse) -> Miss | None:
        """Return the miss for an answer's status, with the message of its body; None for success."""
        status = response.status
        if 200 <= status < 300:
            return None
        reason = reason_of(status)
        says = f"{self._url} answers {status}"
        if reason == "redirected":
            where = f"{response.getheader('Location', '')!r:.120}"
            says = f"{says}, to {where}: set GEMMILL_REMOTE to that address if it is right"
        elif reason == "unauthorised":
            says = f"{says}: GEMMILL_REMOTE_TOKEN is missing, wrong or expired"
        error = _error(self._drain(response))
        return Miss(reason, f"{says}{error}", pause=pause_of(response.getheader("Retry-After")))

    def _compile_miss(self, requested: RequestedKernel, error: Any) -> Miss:
        """Return the miss for a kernel that the remote cannot compile, or cannot compile now."""
        fields = error if isinstance(error, dict) else {}
        pause = fields.get("retry_after")
        if isinstance(pause, int | float) and math.isfinite(pause):
            return Miss("busy", f"{self._url} cannot compile {requested.name} now{words_of(fields)}", max(0.0, pause))
        return Miss("failed", f"{self._url} cannot compile {requested.name}{words_of(fields)}")

    def _drain(self, response: HTTPResponse) -> bytes:
        """Read the rest of a short answer, so that the connection can be reused."""
        data = response.read(_MAX_ERROR_BYTES)
        self._count("bytes", len(data))
        return data


def _token(token: str | Path) -> str:
    """Return the text of a token, possibly from a file."""
    if isinstance(token, str):
        return token
    try:
        text = token.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Miss("token", f"the token in {token} cannot be read: {error}") from error
    if not TOKEN.fullmatch(text):
        raise Miss("token", f"{token} does not hold a valid token: expected letters, digits and -._~+/")
    return text


def _error(body: bytes) -> str:
    """Return the message in the body of a refusal, where it follows the protocol."""
    try:
        fields = parse(body)
    except ValueError:
        return ""
    return words_of(fields.get("error") if isinstance(fields, dict) else None)


class Machine(NamedTuple):
    """The machine that kernels run on."""

    gpu: str
    """Name of the GPU."""
    archs: tuple[str, ...]
    """Architectures whose kernels run on it, such as ``sm90a``; the last is its own."""
    sms: int
    """Number of SMs."""
    cuda: tuple[int, int] | None
    """The newest CUDA version that its driver supports, major and minor; None where there is no driver."""


class RequestedKernel(NamedTuple):
    """One kernel with everything that determines what it must be made from."""

    name: str
    """Kernel name."""
    source_digest: str
    """SHA-256 of its source."""
    headers_digest: str
    """SHA-256 of gemmill's own headers."""
    key: str | None
    """Its key in a store, which needs the toolchain to compute. None accepts the kernel from any toolchain."""

    @classmethod
    def of(cls, source: EmittedSource, key: str | None = None) -> RequestedKernel:
        """Return the request for the kernel of a source."""
        return cls(source.name, source.digest, source.headers_digest, key)

    @property
    def note(self) -> str:
        """Key of the note in which the store records where a kernel from any toolchain is."""
        text = f"{SCHEMA_VERSION} {self.name} {self.source_digest} {self.headers_digest}"
        return hashlib.sha256(text.encode()).hexdigest()

    def fits(self, name: str, key: str, provenance: Provenance) -> bool:
        """Whether a kernel is the requested one; other versions of gemmill have other sources."""
        made_from = provenance.source_digest, provenance.headers_digest
        return name == self.name and self.key in (None, key) and made_from == (self.source_digest, self.headers_digest)

    def manifest(self, sealed: bytes, trusted: TrustedKeys | None, machine: Machine) -> KernelManifest:
        """Return the manifest of this kernel in an envelope.

        Raises:
            Miss: no trusted key signed it, it is for another kernel, or the machine cannot load the kernel.
        """
        try:
            manifest = KernelManifest.from_bytes(open_sealed(sealed, KERNEL, trusted))
        except TrustError as error:
            raise Miss("untrusted", f"the manifest of {self.name} is not trusted: {error}") from error
        if not self.fits(manifest.kernel, manifest.key, manifest.provenance):
            origin = (
                f"made by gemmill {manifest.provenance.gemmill_version} with NVRTC {manifest.provenance.nvrtc_version}"
            )
            reason = "version" if manifest.kernel == self.name else "another"
            raise Miss(
                reason,
                f"the remote sent {manifest.kernel}, {origin}, for {self.name}, which differs from what this machine "
                "would compile",
            )
        if machine.cuda is not None and manifest.cuda[0] > machine.cuda[0]:
            kernel_cuda, driver_cuda = (".".join(map(str, version)) for version in (manifest.cuda, machine.cuda))
            raise Miss(
                "driver",
                f"{self.name} was compiled with CUDA {kernel_cuda}, but the driver supports at most {driver_cuda}",
            )
        return manifest

    def find_in(self, store: Store) -> Artifact | None:
        """Return this kernel from a store that fetched it from a remote, from any toolchain; None for a miss."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            key = parse(store.get_note("remote", self.note))["key"]
            artifact = store.get(key) if isinstance(key, str) else None
            if artifact is not None and self.fits(artifact.name, artifact.key, artifact.provenance):
                return artifact
        return None

    def keep(self, store: Store, artifact: Artifact) -> None:
        """Store this kernel so that it is found without a toolchain."""
        store.put(artifact.key, artifact)
        store.put_note("remote", self.note, json.dumps({"kernel": self.name, "key": artifact.key}).encode())
