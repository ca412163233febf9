"""A kernel's manifest: small, signed, and enough to decide whether to fetch a kernel and to check what then comes."""

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
"""What its envelope says it is."""
_SCHEMA = 1
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelManifest:
    """What is said of one kernel."""

    kernel: str
    """Its name."""
    key: str
    """Where a store keeps it: :attr:`Artifact.key`."""
    digest: str
    """SHA-256, in hex, of its blob: :meth:`Artifact.to_bytes`."""
    bytes: int
    """Bytes of the blob."""
    arch: str
    """Architecture that its machine code is for, such as ``sm90a``."""
    cuda: tuple[int, int]
    """Version of the compiler that made it, which the driver must be able to load."""
    launch: LaunchSpec
    """How it is launched."""
    provenance: Provenance
    """What it was made from."""

    @classmethod
    def of(cls, artifact: Artifact) -> KernelManifest:
        """The manifest of a compiled kernel."""
        return cls._of(artifact, artifact.to_bytes())

    @classmethod
    def _of(cls, artifact: Artifact, blob: builtins.bytes) -> KernelManifest:
        return cls(
            kernel=artifact.name,
            key=artifact.key,
            digest=hashlib.sha256(blob).hexdigest(),
            bytes=len(blob),
            arch=artifact.config.arch,
            cuda=_cuda(artifact.provenance),
            launch=artifact.launch,
            provenance=artifact.provenance,
        )

    def to_bytes(self) -> builtins.bytes:
        """As JSON; equal manifests have equal bytes."""
        return canonical({"schema": _SCHEMA, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: builtins.bytes) -> KernelManifest:
        """The inverse of :meth:`to_bytes`.

        Raises:
            TrustError: it is no manifest of this version of gemmill.
        """
        try:
            manifest = cls._read(parse(data))
            if manifest.to_bytes() != data:
                raise ValueError("it is not as gemmill writes it")
        except (AttributeError, ConfigError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise TrustError(f"no manifest of a kernel that this version of gemmill reads: {error!r:.300}") from None
        return manifest

    @classmethod
    def _read(cls, content: Mapping[str, Any]) -> KernelManifest:
        if (schema := content["schema"]) != _SCHEMA:
            raise ValueError(f"its schema is {schema!r:.20}; it must be {_SCHEMA}")
        manifest = read_row("it", {name: value for name, value in content.items() if name != "schema"}, cls)
        if not 0 < manifest.bytes <= MAX_BYTES:
            raise ValueError(f"it says {manifest.bytes} bytes; at most {MAX_BYTES:,} are read")
        for name, text in (("key", manifest.key), ("digest", manifest.digest)):
            if not is_sha256(text):
                raise ValueError(f"{name} is {text!r:.80}, which is no SHA-256 in hex")
        if manifest.arch != parse_name(plain_name(manifest.kernel)).arch or manifest.cuda != _cuda(manifest.provenance):
            raise ValueError("arch and cuda are not those of its kernel and provenance")
        return manifest

    def artifact(self, blob: builtins.bytes) -> Artifact:
        """The kernel of a blob, which is what this manifest says and what its config means: it may be launched.

        Raises:
            TrustError: the blob is another, damaged, or made for another version of gemmill; ``reason`` is
                ``tampered``.
        """
        try:
            if len(blob) != self.bytes or hashlib.sha256(blob).hexdigest() != self.digest:
                raise ValueError(f"{len(blob):,} bytes came, which are not the {self.bytes:,} of its digest")
            artifact = Artifact.from_bytes(blob)
            if KernelManifest._of(artifact, blob) != self:
                raise ValueError(f"its blob holds {artifact.name}, of which its manifest says something else")
            verify(artifact)
        except (RecursionError, ValueError) as error:
            raise TrustError(f"{self.kernel}: {error}", "tampered") from None
        return artifact


def _cuda(provenance: Provenance) -> tuple[int, int]:
    """Major and minor version of NVRTC; ValueError where it has none."""
    if not (version := _VERSION.fullmatch(provenance.nvrtc_version)):
        raise ValueError(f"nvrtc_version is {provenance.nvrtc_version!r:.40}, which is no version")
    return int(version[1]), int(version[2])
