"""The kernels of a server: each is a signed manifest and the blob that it names. Both must exist.

The server looks for a kernel in memory, in the store on disk, and in the bucket. It verifies each kernel before it
sends it, and copies it to the faster places. If the disk is full or damaged, new kernels are still kept in memory.
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
"""Maximum size of all blobs in memory, about a thousand."""
_log = logging.getLogger(__name__)


class Served(NamedTuple):
    """A kernel, ready to send."""

    manifest: KernelManifest
    envelope: bytes
    blob: bytes


class Kernels:
    """The kernels of a server."""

    def __init__(self, store: Store, files: Files, signing: Signing, bucket: Bucket | None, metrics: Metrics) -> None:
        self._store, self._files, self._signing, self._bucket = store, files, signing, bucket
        self._metrics = metrics
        self._recent: OrderedDict[str, Served] = OrderedDict()
        """Kernels in memory by key, the least recently used first."""
        self._keys: dict[str, str] = {}
        """The keys of the kernels in memory, by the digest of the blob."""
        self._recent_bytes = 0
        self._background: set[asyncio.Task[None]] = set()

    def recent(self, key: str) -> Served | None:
        """The kernel of a key if it is in memory, else None."""
        if (served := self._recent.get(key)) is not None:
            self._recent.move_to_end(key)
        return served

    async def find(self, key: str) -> Served | None:
        """The kernel of a key, from memory, disk or bucket; None if it is in none of them."""
        if (served := self.recent(key)) is None:
            served = await asyncio.to_thread(self._from_disk, key) or await self._from_bucket(key)
            if served is not None:
                self._keep(served)
        return served

    async def find_blob(self, digest: str) -> bytes | None:
        """The blob of a digest; None if no kernel with a manifest has it."""
        key = self._keys.get(digest)
        if key is None:
            content = await asyncio.to_thread(self._files.read, "blobs", digest)
            key = content.decode(errors="replace") if content else None
        if key is not None and (served := await self.find(key)) is not None and served.manifest.digest == digest:
            return served.blob
        return None

    async def publish(self, artifact: Artifact) -> Served:
        """Store, sign and upload a kernel that was just compiled."""
        served = await asyncio.to_thread(self._publish, artifact)
        self._keep(served)
        self._upload_later(served)
        return served

    async def take_blob(self, digest: str, data: bytes) -> bool:
        """Keep an uploaded blob until its manifest arrives; returns whether it is new.

        Raises:
            Refusal: the digest does not match, or the blob is not a valid kernel.
        """
        if await self.find_blob(digest) is not None:
            return False
        return await asyncio.to_thread(self._take_blob, digest, data)

    async def take_manifest(self, key: str, envelope: bytes) -> bool:
        """Accept the manifest of a blob that was uploaded before; returns whether the kernel is new.

        Raises:
            Refusal: the signature, key or blob is not valid, or another kernel has the key.
        """
        try:
            manifest, envelope = await asyncio.to_thread(self._signing.from_outside, envelope)
        except TrustError as error:
            raise Refusal(403, error.reason, str(error), "sign it with a key that the server trusts") from None
        if manifest.key != key:
            raise Refusal(422, "wrong_key", f"The manifest has the key {manifest.key}; expected {key}.")
        if (present := await self.find(key)) is not None:
            if present.manifest == manifest:
                return False
            raise Refusal(412, "there", f"{key} exists already, with the blob {present.manifest.digest}.")
        blob = await asyncio.to_thread(self._files.read, "uploads", manifest.digest)
        if blob is None:
            raise Refusal(409, "no_blob", f"Missing blob {manifest.digest}.", "upload the blob before the manifest")
        served = await asyncio.to_thread(self._adopt, manifest, envelope, blob)
        self._keep(served)
        self._upload_later(served)
        await asyncio.to_thread(self._files.remove, "uploads", manifest.digest)
        return True

    def sweep(self) -> int:
        """Remove the manifests of kernels that the store has evicted; returns their number."""
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
        """Wait for all uploads to the bucket."""
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
        """A kernel from the store, with its stored manifest if that is valid, else a new manifest."""
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
            _log.error("%s: %s; dropped from the store", key, error)
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
        """Verify and store a kernel from a client or the bucket; Refusal if the blob does not match the manifest."""
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
            raise Refusal(400, "digest", f"The SHA-256 of the body is {actual}; expected {digest}.", "send it again")
        try:
            verify(Artifact.from_bytes(data))
        except ValueError as error:
            raise Refusal(422, "no_kernel", f"The body is not a kernel for this version of gemmill: {error}") from None
        if self._files.uploads_bytes() + len(data) > UPLOADS_BYTES:
            full = f"Blobs without a manifest would exceed {UPLOADS_BYTES:,} bytes."
            raise Refusal(507, "full", full, "upload the manifests of earlier blobs", retry_after=60)
        if self._files.read("uploads", digest) is not None:
            return False
        if not self._files.write("uploads", digest, data):
            raise Refusal(507, "full", "Cannot write the blob to disk.", "see the server's log", retry_after=60)
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
            _log.error("%s in the bucket is invalid: %s", key, error)
            self._metrics.damaged.inc()
            return None

    def _upload_later(self, served: Served) -> None:
        """Upload a kernel to the bucket in the background."""
        if self._bucket is not None:
            task = asyncio.create_task(self._upload(self._bucket, served))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _upload(self, bucket: Bucket, served: Served) -> None:
        if await bucket.put("blobs", served.manifest.digest, served.blob):
            await bucket.put("kernels", served.manifest.key, served.envelope)


def required(served: Served | None, key: str) -> Served:
    """The kernel; Refusal 404 if it is None."""
    if served is None:
        raise not_found(f"kernel {key}", "POST /v1/instantiate compiles kernels")
    return served


@dataclass(frozen=True)
class Signing:
    """The signing keys and trusted keys of a server.

    The server signs all manifests with its own keys. It accepts a manifest from a client or a bucket if its own or a
    trusted key signed it. With neither own nor trusted keys, it accepts unsigned manifests and sends them unchanged.
    """

    keys: Sequence[SigningKey]
    own: TrustedKeys | None
    """The public keys of :attr:`keys`; None without keys."""
    outside: TrustedKeys | None
    """The server's own public keys and the trusted ones; None without either."""

    @classmethod
    def load(cls, files: Sequence[Path], trust: str) -> Signing:
        """Read private keys from files, and trusted public keys from ``trust``; TrustError if one is invalid."""
        keys = [SigningKey.load(path) for path in files]
        public = tuple(key.public for key in keys)
        trusted = TrustedKeys.read(trust) if trust else TrustedKeys(())
        both = TrustedKeys((*public, *trusted.keys), trusted.revoked)
        return cls(keys, TrustedKeys(public) if public else None, both if both.keys else None)

    def seal(self, kind: str, payload: bytes) -> bytes:
        """An envelope of the payload, signed with all keys of the server."""
        return seal(kind, payload, self.keys)

    def from_outside(self, envelope: bytes) -> tuple[KernelManifest, bytes]:
        """Verify an envelope from a client or a bucket; returns its manifest, and the envelope to send.

        Raises:
            TrustError: the envelope is not signed by a trusted key, or is not valid.
        """
        payload = open_sealed(envelope, KERNEL, self.outside)
        manifest = KernelManifest.from_bytes(payload)
        return manifest, self.seal(KERNEL, payload) if self.keys else envelope

    def from_disk(self, envelope: bytes) -> KernelManifest:
        """The manifest of a stored envelope; TrustError unless the server's current keys signed it."""
        return KernelManifest.from_bytes(open_sealed(envelope, KERNEL, self.own))
