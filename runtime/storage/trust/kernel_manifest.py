"""A kernel's manifest: small, signed, and sufficient to decide whether to fetch the kernel and to check it
afterwards."""

from __future__ import annotations

import builtins
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from gemmill.library.config.edited import plain_name
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError, TrustError
from gemmill.library.files import is_sha256
from gemmill.library.input.strict_json import parse, read_row
from gemmill.library.launch import LaunchSpec
from gemmill.runtime.storage.artifact import MAX_BYTES, Artifact, Provenance, canonical
from gemmill.runtime.storage.verification import verify

KERNEL: Final = "gemmill.kernel/1"
"""Type of its envelope."""
_SCHEMA = 1
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelManifest:
    """The description of one kernel."""

    kernel: str
    """Kernel name."""
    key: str
    """Its key in a store: :attr:`Artifact.key`."""
    digest: str
    """SHA-256, in hex, of its blob: :meth:`Artifact.to_bytes`."""
    bytes: int
    """Bytes of the blob."""
    arch: str
    """Architecture of its machine code, such as ``sm90a``."""
    cuda: tuple[int, int]
    """Version of the compiler, which the driver must be able to load."""
    launch: LaunchSpec
    """How it is launched."""
    provenance: Provenance
    """What it was made from."""

    @classmethod
    def of(cls, artifact: Artifact) -> KernelManifest:
        """Return the manifest of a compiled kernel."""
        return cls._of(artifact, artifact.to_bytes())

    @classmethod
    def _of(cls, artifact: Artifact, blob: builtins.bytes) -> KernelManifest:
        return cls(
            kernel=artifact.name,
            key=artifact.key,
            digest=hashlib.sha256(blob).hexdigest(),
            bytes=len(blob),
            arch=artifact.config.arch,
            cuda=cuda_of(artifact.provenance),
            launch=artifact.launch,
            provenance=artifact.provenance,
        )

    def to_bytes(self) -> builtins.bytes:
        """Return the manifest as JSON; equal manifests have equal bytes."""
        return canonical({"schema": _SCHEMA, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: builtins.bytes) -> KernelManifest:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            TrustError: it is not a manifest of this version of gemmill.
        """
        try:
            manifest = cls._read(parse(data))
            if manifest.to_bytes() != data:
                raise ValueError("it is not in canonical form")
        except (AttributeError, ConfigError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise TrustError(f"not a kernel manifest of this version of gemmill: {error!r:.300}") from None
        return manifest

    @classmethod
    def _read(cls, content: Mapping[str, Any]) -> KernelManifest:
        if (schema := content["schema"]) != _SCHEMA:
            raise ValueError(f"its schema is {schema!r:.20}; it must be {_SCHEMA}")
        manifest = read_row("it", {name: value for name, value in content.items() if name != "schema"}, cls)
        if not 0 < manifest.bytes <= MAX_BYTES:
            raise ValueError(f"bytes is {manifest.bytes}; it must be from 1 to {MAX_BYTES:,}")
        for name, text in (("key", manifest.key), ("digest", manifest.digest)):
            if not is_sha256(text):
                raise ValueError(f"{name} is {text!r:.80}, which is not a SHA-256 in hex")
        if manifest.arch != parse_name(plain_name(manifest.kernel)).arch or manifest.cuda != cuda_of(
            manifest.provenance
        ):
            raise ValueError("arch and cuda do not match its kernel and provenance")
        return manifest

    def artifact(self, blob: builtins.bytes) -> Artifact:
        """Return the kernel of a blob, after checking that it matches this manifest and its config. It may be launched.

        Raises:
            TrustError: the blob is another one, damaged, or made for another version of gemmill; ``reason`` is
                ``tampered``.
        """
        try:
            if len(blob) != self.bytes or hashlib.sha256(blob).hexdigest() != self.digest:
                raise ValueError(
                    f"received {len(blob):,} bytes that do not match the digest of the expected {self.bytes:,} bytes"
                )
            artifact = Artifact.from_bytes(blob)
            if KernelManifest._of(artifact, blob) != self:
                raise ValueError(f"its blob holds {artifact.name}, which does not match its manifest")
            verify(artifact)
        except (RecursionError, ValueError) as error:
            raise TrustError(f"{self.kernel}: {error}", "tampered") from None
        return artifact


def cuda_of(provenance: Provenance) -> tuple[int, int]:
    """Return the major and minor version of NVRTC; ValueError where there is none."""
    if not (version := _VERSION.fullmatch(provenance.nvrtc_version)):
        raise ValueError(f"nvrtc_version is {provenance.nvrtc_version!r:.40}, which is not a version")
    return int(version[1]), int(version[2])
