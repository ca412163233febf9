"""Kernels as they are served: a signed manifest, and the blob that it names. A manifest without its blob is none.

They are looked for in memory, in the store on disk, and in the bucket. What is found is checked before it is served,
and kept where it was missing. A disk that is full or damaged costs no kernel that was just compiled: memory has it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gemmill.library.errors import TrustError
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys, open_sealed, seal
from gemmill.runtime.storage.verification import verify
from gemmill.service.bucket import Bucket
from gemmill.service.metrics import Metrics
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.state_files import UPLOADS_BYTES, Files

MEMORY_BYTES = 64 << 20
"""Blobs that are kept in memory: a thousand."""
_log = logging.getLogger(__name__)


class Served(NamedTuple):
    """A kernel as it is served."""

    manifest: KernelManifest
    envelope: bytes
    blob: bytes


class Kernels:
    """The kernels of a server."""

    def __init__(self, store: Store, files: Files, signing: Signing, bucket: Bucket | None, metrics: Metrics) -> None:
        self._store, self._files, self._signing, self._bucket = store, files, signing, bucket
        self._metrics = metrics
        self._recent: OrderedDict[str, Served] = OrderedDict()
        """By key, the one used least recently first."""
        self._keys: dict[str, str] = {}
        """Of those, the key by the blob's digest."""
        self._recent_bytes = 0
        self._background: set[asyncio.Task[None]] = set()

    def recent(self, key: str) -> Served | None:
        """A kernel that memory has."""
        if (served := self._recent.get(key)) is not None:
            self._recent.move_to_end(key)
        return served

    async def find(self, key: str) -> Served | None:
        """The kernel of a key; None where nobody has it."""
        if (served := self.recent(key)) is None:
            served = await asyncio.to_thread(self._from_disk, key) or await self._from_bucket(key)
            if served is not None:
                self._keep(served)
        return served

    async def find_blob(self, digest: str) -> bytes | None:
        """The blob of a digest, of kernels that have a manifest."""
        key = self._keys.get(digest)
        if key is None:
            kept = await asyncio.to_thread(self._files.read, "blobs", digest)
            key = kept.decode(errors="replace") if kept else None
        if key is not None and (served := await self.find(key)) is not None and served.manifest.digest == digest:
            return served.blob
        return None

    async def publish(self, artifact: Artifact) -> Served:
        """Have a kernel served that was just compiled here."""
        served = await asyncio.to_thread(self._publish, artifact)
        self._keep(served)
        self._upload_later(served)
        return served

    async def take_blob(self, digest: str, data: bytes) -> bool:
        """Keep a blob until its manifest comes; whether it is new. Refusal where it is another, or no kernel."""
        if await self.find_blob(digest) is not None:
            return False
        return await asyncio.to_thread(self._take_blob, digest, data)

    async def take_manifest(self, key: str, envelope: bytes) -> bool:
        """Have a kernel served whose blob was sent before; whether it is new. Refusal where something is wrong."""
        try:
            manifest, envelope = await asyncio.to_thread(self._signing.from_outside, envelope)
        except TrustError as error:
            raise Refusal(403, error.reason, str(error), "sign it with a key that the server trusts") from None
        if manifest.key != key:
            raise Refusal(422, "wrong_key", f"the manifest is of the key {manifest.key}, not of {key}")
        if (present := await self.find(key)) is not None:
            if present.manifest == manifest:
                return False
            raise Refusal(412, "there", f"{key} is here already, with the blob {present.manifest.digest}")
        blob = await asyncio.to_thread(self._files.read, "uploads", manifest.digest)
        if blob is None:
            raise Refusal(409, "no_blob", f"the blob {manifest.digest} is not here", "send the blob first")
        served = await asyncio.to_thread(self._adopt, manifest, envelope, blob)
        self._keep(served)
        self._upload_later(served)
        await asyncio.to_thread(self._files.remove, "uploads", manifest.digest)
        return True

    def sweep(self) -> int:
        """Remove manifests whose kernels the store has evicted, and what points to them; how many."""
        removed = 0
        for key in self._files.names("manifests"):
            if not self._store.holds(key):
                self._files.remove("manifests", key)
                removed += 1
        for digest in self._files.names("blobs"):
            key = (self._files.read("blobs", digest) or b"").decode(errors="replace")
            if not self._store.holds(key):
                self._files.remove("blobs", digest)
        self._files.uploads_bytes()
        return removed

    async def settle(self) -> None:
        """Wait until what is on its way to the bucket has arrived."""
        if self._background:
            await asyncio.wait(self._background)

    def _keep(self, served: Served) -> None:
        key = served.manifest.key
        if (old := self._recent.pop(key, None)) is not None:
            self._forget(old)
        self._recent[key] = served
        self._keys[served.manifest.digest] = key
        self._recent_bytes += len(served.blob)
        while self._recent_bytes > MEMORY_BYTES and len(self._recent) > 1:
            self._forget(self._recent.popitem(last=False)[1])

    def _forget(self, served: Served) -> None:
        self._recent_bytes -= len(served.blob)
        self._keys.pop(served.manifest.digest, None)

    def _from_disk(self, key: str) -> Served | None:
        """The kernel of an entry of the store, with the manifest that was kept of it, or a new one."""
        try:
            blob = self._store.read(key)
        except OSError:
            return None
        if (envelope := self._files.read("manifests", key)) is not None:
            with suppress(TrustError):
                manifest = self._signing.from_disk(envelope)
                if manifest.key == key and manifest.digest == hashlib.sha256(blob).hexdigest():
                    return Served(manifest, envelope, blob)
        try:
            verify(artifact := Artifact.from_bytes(blob, key))
        except ValueError as error:
            _log.error("%s: %s; it is dropped", key, error)
            self._metrics.damaged.inc()
            with suppress(OSError):
                self._store.drop(key)
            return None
        return self._with_manifest(artifact, blob)

    def _publish(self, artifact: Artifact) -> Served:
        blob = artifact.to_bytes()
        try:
            present = self._store.read(artifact.key)
        except OSError:
            present = b""
        if present != blob:
            self._store.write(artifact.key, blob, artifact.name)
        return self._with_manifest(artifact, blob)

    def _with_manifest(self, artifact: Artifact, blob: bytes) -> Served:
        manifest = replace(KernelManifest.of(artifact), digest=hashlib.sha256(blob).hexdigest(), bytes=len(blob))
        served = Served(manifest, self._signing.seal(KERNEL, manifest.to_bytes()), blob)
        self._write(served)
        return served

    def _adopt(self, manifest: KernelManifest, envelope: bytes, blob: bytes) -> Served:
        """A kernel from outside, checked and kept; Refusal where the blob is not what the manifest says."""
        try:
            manifest.artifact(blob)
        except TrustError as error:
            raise Refusal(422, error.reason, str(error)) from None
        self._store.write(manifest.key, blob, manifest.kernel)
        served = Served(manifest, envelope, blob)
        self._write(served)
        return served

    def _write(self, served: Served) -> None:
        manifest = served.manifest
        if self._files.write("blobs", manifest.digest, manifest.key.encode()):
            self._files.write("manifests", manifest.key, served.envelope)

    def _take_blob(self, digest: str, data: bytes) -> bool:
        if (actual := hashlib.sha256(data).hexdigest()) != digest:
            raise Refusal(400, "digest", f"the body's SHA-256 is {actual}, not {digest}", "send it again")
        try:
            verify(Artifact.from_bytes(data))
        except ValueError as error:
            raise Refusal(422, "no_kernel", f"the body is no kernel that this gemmill takes: {error}") from None
        if self._files.uploads_bytes() + len(data) > UPLOADS_BYTES:
            full = f"{UPLOADS_BYTES:,} bytes of blobs wait for their manifests"
            raise Refusal(507, "full", full, "send manifests", retry_after=60)
        if self._files.read("uploads", digest) is not None:
            return False
        if not self._files.write("uploads", digest, data):
            raise Refusal(507, "full", "the blob could not be written; the server's log says why", retry_after=60)
        return True

    async def _from_bucket(self, key: str) -> Served | None:
        if self._bucket is None or (sealed := await self._bucket.get("kernels", key)) is None:
            return None
        try:
            manifest, envelope = await asyncio.to_thread(self._signing.from_outside, sealed)
            blob = await self._bucket.get("blobs", manifest.digest) if manifest.key == key else None
            if blob is None:
                return None
            return await asyncio.to_thread(self._adopt, manifest, envelope, blob)
        except (Refusal, TrustError) as error:
            _log.error("%s of the bucket is refused: %s", key, error)
            self._metrics.damaged.inc()
            return None

    def _upload_later(self, served: Served) -> None:
        """Put a kernel into the bucket, behind the request that it is of."""
        if self._bucket is not None:
            task = asyncio.create_task(self._upload(self._bucket, served))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _upload(self, bucket: Bucket, served: Served) -> None:
        if await bucket.put("blobs", served.manifest.digest, served.blob):
            await bucket.put("kernels", served.manifest.key, served.envelope)


def required(served: Served | None, key: str) -> Served:
    """A kernel that was found; Refusal 404 where it was not."""
    if served is None:
        raise not_found(f"the kernel of {key}", "POST /v1/instantiate has it compiled")
    return served


@dataclass(frozen=True)
class Signing:
    """Keys of a server.

    What it serves is signed by its own keys. What comes from outside counts if one of its own or of the trusted keys
    signed it; without any of either, what comes need not be signed, and what is served is as it came.
    """

    keys: Sequence[SigningKey]
    own: TrustedKeys | None
    """The public keys of :attr:`keys`; None where there are none."""
    outside: TrustedKeys | None
    """Those and the trusted ones; None where there are none."""

    @classmethod
    def load(cls, files: Sequence[Path], trust: str) -> Signing:
        """Keys of files, two while one takes the place of another, and those to trust beside; TrustError as theirs."""
        keys = [SigningKey.load(path) for path in files]
        public = tuple(key.public for key in keys)
        trusted = TrustedKeys.read(trust) if trust else TrustedKeys(())
        both = TrustedKeys((*public, *trusted.keys), trusted.revoked)
        return cls(keys, TrustedKeys(public) if public else None, both if both.keys else None)

    def seal(self, kind: str, payload: bytes) -> bytes:
        """An envelope with the signatures of the server's keys, as far as it has any."""
        return seal(kind, payload, self.keys)

    def from_outside(self, envelope: bytes) -> tuple[KernelManifest, bytes]:
        """The manifest of an envelope that came from a client or a bucket, and the envelope to serve it in; TrustError
        where it is not to be taken."""
        payload = open_sealed(envelope, KERNEL, self.outside)
        manifest = KernelManifest.from_bytes(payload)
        return manifest, self.seal(KERNEL, payload) if self.keys else envelope

    def from_disk(self, envelope: bytes) -> KernelManifest:
        """The manifest of an envelope that was kept; TrustError where the server's present keys have not signed it."""
        return KernelManifest.from_bytes(open_sealed(envelope, KERNEL, self.own))
