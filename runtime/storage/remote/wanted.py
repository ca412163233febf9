"""The kernel that a client wants, and whether what a remote says it has is that kernel."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import NamedTuple

from gemmill.emitters.emit import EmittedSource
from gemmill.library.errors import TrustError
from gemmill.library.input.strict_json import parse
from gemmill.runtime.storage.artifact import SCHEMA_VERSION, Artifact, Provenance
from gemmill.runtime.storage.remote.misses import Miss
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.envelope import open_sealed
from gemmill.runtime.storage.trust.kernel_manifest import KERNEL, KernelManifest
from gemmill.runtime.storage.trust.keys import TrustedKeys


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


class Wanted(NamedTuple):
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
    def of(cls, source: EmittedSource, key: str | None = None) -> Wanted:
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

    def kept(self, store: Store) -> Artifact | None:
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
