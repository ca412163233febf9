"""Whose signatures the service takes, and its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmill.runtime.storage.trust.envelope import open_sealed, seal
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.keys import SigningKey, TrustedKeys


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
