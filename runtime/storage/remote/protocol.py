"""The requests of the protocol, one function each, and what each answer means."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
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
from gemmill.runtime.storage.remote.transport import Connections, Deadline
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, SigningKey, TrustedKeys, open_sealed, seal

Put = Literal["stored", "there"]
"""What became of a kernel that was uploaded."""
_NO_KEY: Final = "0" * 64
"""A key that nothing has: who asks for it learns whether the remote answers."""
_MAX_ERROR_BYTES = 64 << 10
"""Most bytes that are read of an answer that is an error; of others the connection is closed."""
_MAX_EVENTS_BYTES = 2 * MAX_SEALED_BYTES
_WAIT = 0.8
"""Part of the time that is left in which the remote is to have a kernel made, or to say that it is not."""
_STATUS: Mapping[int, str] = {
    401: "unauthorised",
    403: "forbidden",  # what servers of files say of what is not there to who may not list
    404: "absent",
    405: "absent",
    409: "version",
    410: "absent",
    429: "busy",
    501: "absent",
    503: "busy",
    507: "full",
}
"""Reasons by status, besides whole hundreds."""
_HUNDREDS: Mapping[int, str] = {3: "redirected", 5: "server error"}


class Protocol:
    """What can be asked of one remote. Every method raises Miss where the answer is another than the one it wants.

    Args:
        url: of the remote, for messages.
        connections: to it.
        token: sent with every request; of a file, that it holds at the time.
        trusted: whose signatures count; None: whatever comes counts.
        count: told the requests sent and the bytes received.
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
        """The manifest of a kernel whose key is known."""
        with self._answer("GET", f"/v1/kernels/{requested.key}", deadline) as response:
            sealed = self._body(response, MAX_SEALED_BYTES)
        return requested.manifest(sealed, self._trusted, machine)

    def blob(self, manifest: KernelManifest, deadline: Deadline) -> Artifact:
        """The kernel of a manifest, verified."""
        with self._answer("GET", f"/v1/blobs/{manifest.digest}", deadline) as response:
            blob = self._body(response, manifest.bytes)
        try:
            return manifest.artifact(blob)
        except TrustError as error:
            raise Miss("damaged", f"{self._url}: {error}") from error

    def instantiate(self, requested: RequestedKernel, machine: Machine, deadline: Deadline) -> KernelManifest:
        """The manifest of a kernel that the remote has, or makes while this waits."""
        arch = formats(requested.name)[0]
        gpu = {"name": machine.gpu, "arch": machine.archs[-1], "sm_count": machine.sms} if arch in machine.archs else {}
        request = {
            "kernels": [requested.name],
            "problems": [],
            "gemmill": __version__,
            "headers": requested.headers_digest,
            "gpu": gpu or {"name": arch, "arch": arch},  # a kernel that is to run elsewhere
            "driver_cuda": machine.cuda,
            "wait": round(_WAIT * deadline.left(), 3),
        }
        manifest: KernelManifest | None = None
        with self._answer("POST", "/v1/instantiate", deadline, json.dumps(request).encode()) as response:
            for event in self._events(response):
                kind = event.get("event")
                if kind == "done":
                    continue  # to the end, so that the connection can be kept
                if event.get("kernel") != requested.name:
                    raise Miss("another", f"{self._url} was asked for {requested.name} and speaks of something else")
                if requested.key and event.get("key", requested.key) != requested.key:
                    raise Miss(
                        "version", f"{self._url} makes {requested.name} with another toolchain than there is here"
                    )
                if kind == "failed":
                    raise self._failed(requested, event.get("error"))
                if kind == "ready":
                    sealed = json.dumps(event.get("manifest")).encode()
                    manifest = requested.manifest(sealed, self._trusted, machine)
        if manifest is None:
            raise Miss("pending", f"{self._url} did not have {requested.name} made in time")
        return manifest

    def put(self, artifact: Artifact, keys: Sequence[SigningKey], deadline: Deadline) -> Put:
        """Upload a kernel that the remote lacks: its blob, then its manifest, so that no manifest is without one."""
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
                says = f"{miss.says}; no key signed it: GEMMILL_REMOTE_SIGN, or --sign, names one"
                raise Miss(miss.reason, says, miss.pause) from None
            raise
        return "stored"

    def probe(self, deadline: Deadline) -> None:
        """Whether the remote answers as it should to who asks for what nobody has."""
        with self._request("GET", f"/v1/kernels/{_NO_KEY}", deadline) as response:
            if (miss := self._refusal(response)) is not None and miss.reason not in ("absent", "forbidden"):
                raise miss

    def _put(self, path: str, body: bytes, deadline: Deadline) -> None:
        with self._request("PUT", path, deadline, body) as response:
            miss = self._refusal(response)
            if miss is not None and response.status != 412:  # which says that it is there
                raise miss
            self._drain(response)

    @contextmanager
    def _answer(self, method: str, path: str, deadline: Deadline, body: bytes | None = None) -> Iterator[HTTPResponse]:
        """An answer that is no refusal."""
        with self._request(method, path, deadline, body) as response:
            if (miss := self._refusal(response)) is not None:
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
        """All that an answer holds."""
        if (response.length or 0) > most:
            raise Miss("too large", f"{self._url} sends {response.length:,} bytes where {most:,} are the most")
        data = response.read(most + 1)
        self._count("bytes", len(data))
        if len(data) > most:
            raise Miss("too large", f"{self._url} sends more than {most:,} bytes")
        if response.length:
            raise Miss("closed", f"{self._url} closed the connection {response.length:,} bytes before the end")
        return data

    def _events(self, response: HTTPResponse) -> Iterator[dict[str, Any]]:
        """The lines of an answer, each a mapping; the last says done."""
        left, is_done = _MAX_EVENTS_BYTES, False
        while line := response.readline(left + 1):
            self._count("bytes", len(line))
            if (left := left - len(line)) < 0:
                raise Miss("too large", f"{self._url} sends more than {_MAX_EVENTS_BYTES:,} bytes")
            try:
                event = parse(line)
            except ValueError as error:
                raise Miss("garbage", f"{self._url} sends events that are no JSON: {error}") from error
            if not isinstance(event, dict):
                raise Miss("garbage", f"{self._url} sends {event!r:.80} as an event")
            is_done = event.get("event") == "done"
            yield event
        if not is_done:
            raise Miss("closed", f"{self._url} closed the connection amid its events")

    def _refusal(self, response: HTTPResponse) -> Miss | None:
        """The miss that an answer's status means; None where it means success. Reads what it then says."""
        status = response.status
        if 200 <= status < 300:
            return None
        reason = _STATUS.get(status) or _HUNDREDS.get(status // 100, "unexpected")
        says = f"{self._url} answers {status}"
        if reason == "redirected":
            says = f"{says}, to {response.getheader('Location', '')!r:.120}: name that place itself, if it is right"
        elif reason == "unauthorised":
            says = f"{says}: GEMMILL_REMOTE_TOKEN is missing, wrong or expired"
        error = _error(self._drain(response))
        return Miss(reason, f"{says}{error}", pause=_pause(response.getheader("Retry-After")))

    def _failed(self, requested: RequestedKernel, error: Any) -> Miss:
        """The miss of a kernel that the remote says it cannot make, perhaps not now."""
        fields = error if isinstance(error, dict) else {}
        pause = fields.get("retry_after")
        if isinstance(pause, int | float) and math.isfinite(pause):
            return Miss("busy", f"{self._url} makes no {requested.name} now{_words(fields)}", max(0.0, pause))
        return Miss("failed", f"{self._url} cannot make {requested.name}{_words(fields)}")

    def _drain(self, response: HTTPResponse) -> bytes:
        """The rest of a short answer, so that the connection can be kept."""
        data = response.read(_MAX_ERROR_BYTES)
        self._count("bytes", len(data))
        return data


def _token(token: str | Path) -> str:
    """The text of a token, which a file may hold."""
    if isinstance(token, str):
        return token
    try:
        text = token.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Miss("token", f"the token in {token} cannot be read: {error}") from error
    if not TOKEN.fullmatch(text):
        raise Miss("token", f"what {token} holds is no token, which has letters, digits and -._~+/ alone")
    return text


def _pause(text: str | None) -> float | None:
    """The seconds of a Retry-After header; None where it has none, or means nothing."""
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None


def _error(body: bytes) -> str:
    """What the body of a refusal says, where it is as the protocol has it."""
    try:
        fields = parse(body)
    except ValueError:
        return ""
    return _words(fields.get("error") if isinstance(fields, dict) else None)


def _words(error: Any) -> str:
    """Code and message of an error, as the end of a sentence. Escaped: a remote may write to no terminal."""
    if not isinstance(error, dict):
        return ""
    code, message = (str(error.get(name, "")) for name in ("code", "message"))
    return f" ({code!r:.40}: {message!r:.300})" if code or message else ""


class Machine(NamedTuple):
    """What kernels are to run on."""

    gpu: str
    """Name of the GPU."""
    archs: tuple[str, ...]
    """Architectures whose kernels run on it, such as ``sm90a``; the last is its own."""
    sms: int
    """Its SMs."""
    cuda: tuple[int, int] | None
    """The newest CUDA that its driver knows, major and minor version; None where there is no driver."""


class RequestedKernel(NamedTuple):
    """One kernel, with all that decides what it must have been made from."""

    name: str
    """Its name."""
    source_digest: str
    """SHA-256 of its text."""
    headers_digest: str
    """SHA-256 of gemmill's own headers."""
    key: str | None
    """Where a store keeps it: known to who has the toolchain. None takes it from any toolchain."""

    @classmethod
    def of(cls, source: EmittedSource, key: str | None = None) -> RequestedKernel:
        """The kernel of a source."""
        return cls(source.name, source.digest, source.headers_digest, key)

    @property
    def note(self) -> str:
        """Under what the store keeps where a kernel from any toolchain is."""
        text = f"{SCHEMA_VERSION} {self.name} {self.source_digest} {self.headers_digest}"
        return hashlib.sha256(text.encode()).hexdigest()

    def fits(self, name: str, key: str, provenance: Provenance) -> bool:
        """Whether a kernel is this one: of another gemmill it has another text."""
        made_from = provenance.source_digest, provenance.headers_digest
        return name == self.name and self.key in (None, key) and made_from == (self.source_digest, self.headers_digest)

    def manifest(self, sealed: bytes, trusted: TrustedKeys | None, machine: Machine) -> KernelManifest:
        """What an envelope says of this kernel.

        Raises:
            Miss: no trusted key signed it, it is of another kernel, or the machine cannot load it.
        """
        try:
            manifest = KernelManifest.from_bytes(open_sealed(sealed, KERNEL, trusted))
        except TrustError as error:
            raise Miss("untrusted", f"the manifest of {self.name} is not to be trusted: {error}") from error
        if not self.fits(manifest.kernel, manifest.key, manifest.provenance):
            made = (
                f"made by gemmill {manifest.provenance.gemmill_version} with NVRTC {manifest.provenance.nvrtc_version}"
            )
            reason = "version" if manifest.kernel == self.name else "another"
            raise Miss(reason, f"what came for {self.name} is {manifest.kernel}, {made}, and not what is made here")
        if machine.cuda is not None and manifest.cuda[0] > machine.cuda[0]:
            made, known = (".".join(map(str, version)) for version in (manifest.cuda, machine.cuda))
            raise Miss("driver", f"{self.name} was made with CUDA {made}, and the driver knows {known} at most")
        return manifest

    def find_in(self, store: Store) -> Artifact | None:
        """This kernel from a store that had it from a remote, from whatever toolchain; None for a miss."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            key = parse(store.get_note("remote", self.note))["key"]
            artifact = store.get(key) if isinstance(key, str) else None
            if artifact is not None and self.fits(artifact.name, artifact.key, artifact.provenance):
                return artifact
        return None

    def keep(self, store: Store, artifact: Artifact) -> None:
        """Have a store find this kernel without a toolchain."""
        store.put(artifact.key, artifact)
        store.put_note("remote", self.note, json.dumps({"kernel": self.name, "key": artifact.key}).encode())
