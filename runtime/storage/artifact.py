"""A compiled kernel with everything needed to launch it and to tell where it came from; and its form on disk."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from functools import cached_property

import zstandard

from gemmill.library.config.domains import are_valid
from gemmill.library.config.fields import config_of, fields_of, made_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.launch import LaunchSpec

SCHEMA_VERSION = 2
"""Raised whenever the meaning of a stored field changes: older entries then become misses."""

_MAGIC = b"gemmill\x01"
_PREFIX = struct.Struct("<8sQQ32s")
"""Magic, bytes of the header, bytes of the compressed cubin, SHA-256 of both."""
_LEVEL = 9
"""Cubins hold thousands of stray constants and shrink tenfold; higher levels gain 2% for three times the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one thread and one CTA of a kernel use."""

    registers: int
    """Registers of a thread at launch, before ``setmaxnreg`` moves them between warpgroups."""
    spill_stores: int
    """Bytes of spilled registers stored."""
    spill_loads: int
    """Bytes of spilled registers loaded."""
    stack_bytes: int
    """Stack frame of a thread, in bytes of local memory."""
    static_shared_bytes: int
    """Static shared memory of a CTA."""
    dynamic_shared_bytes: int
    """Dynamic shared memory of a CTA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a cubin was made from. Free of paths, times and hosts: equal input gives equal provenance everywhere."""

    source_digest: str
    """SHA-256 of the emitted text."""
    headers_digest: str
    """SHA-256 of gemmill's own headers."""
    options: tuple[str, ...]
    """Options that decide the outcome: NVRTC's, and ``chain=`` of what is done to the machine code after it."""
    nvrtc_version: str
    cutlass_version: str
    cccl_version: str
    cudart_version: str
    schema_version: int
    """:data:`SCHEMA_VERSION` of the gemmill that made it."""
    gemmill_version: str
    """For people; no part of the key."""


@dataclass(frozen=True)
class Artifact:
    """One compiled kernel."""

    config: GemmConfig
    """What it computes and how."""
    launch: LaunchSpec
    """How it is launched."""
    cubin: bytes
    """Machine code: an ELF file."""
    resources: Resources
    """What it uses."""
    provenance: Provenance
    """What it was made from."""

    @cached_property
    def name(self) -> str:
        """Kernel name."""
        return kernel_name(self.config)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the cubin, in hex: the identity that measurements are kept under."""
        return hashlib.sha256(self.cubin).hexdigest()

    @cached_property
    def key(self) -> str:
        """Where the store keeps it."""
        return artifact_key(self.config, self.launch, self.provenance)

    def to_bytes(self) -> bytes:
        """One self-contained, checksummed run of bytes."""
        header = {
            "config": asdict(self.config),
            "launch": asdict(self.launch),
            "resources": asdict(self.resources),
            "provenance": asdict(self.provenance),
            "cubin_bytes": len(self.cubin),
        }
        head = _canonical(header)
        body = zstandard.ZstdCompressor(level=_LEVEL).compress(self.cubin)
        return _PREFIX.pack(_MAGIC, len(head), len(body), hashlib.sha256(head + body).digest()) + head + body

    @staticmethod
    def from_bytes(data: bytes) -> Artifact:
        """The inverse of :meth:`to_bytes`.

        Raises:
            ValueError: the bytes are truncated, damaged, of another schema, or something else altogether.
        """
        if len(data) < _PREFIX.size or not data.startswith(_MAGIC):
            raise ValueError("no artifact of this version of gemmill")
        _, head_bytes, body_bytes, checksum = _PREFIX.unpack_from(data)
        content = data[_PREFIX.size :]
        if len(content) != head_bytes + body_bytes:
            raise ValueError(f"{len(content)} bytes where {head_bytes + body_bytes} should be")
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError("checksum mismatch")
        try:
            header = json.loads(content[:head_bytes])
            cubin = zstandard.ZstdDecompressor().decompress(content[head_bytes:], max_output_size=header["cubin_bytes"])
            config, provenance = GemmConfig(**made_of(header["config"])), header["provenance"]
            if not are_valid(fields := fields_of(config)):
                config = config_of(fields)  # which says what is wrong
            return Artifact(
                config,
                LaunchSpec.of(header["launch"]),
                cubin,
                Resources(**header["resources"]),
                Provenance(**{**provenance, "options": tuple(provenance["options"])}),
            )
        except (AttributeError, KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
            raise ValueError(f"not readable by this version of gemmill: {error}") from error


def artifact_key(config: GemmConfig, launch: LaunchSpec, provenance: Provenance) -> str:
    """Content address of an artifact before it exists: SHA-256, in hex, of everything that decides what it will be.

    The config and the launch facts stand beside the source because an entry carries them too; versions of NVRTC and of
    all headers because the same source compiles differently; the options because they are not in the source; the
    schema because older entries mean something else.
    """
    ingredients = {
        "config": asdict(config),
        "launch": asdict(launch),
        "provenance": {name: value for name, value in asdict(provenance).items() if name != "gemmill_version"},
    }
    return hashlib.sha256(_canonical(ingredients)).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
