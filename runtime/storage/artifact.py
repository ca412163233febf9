"""A compiled kernel with everything needed to launch it and to tell where it came from; and its form on disk."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import zstandard

from gemmill.library.config.domains import are_valid
from gemmill.library.config.edited import edited_name
from gemmill.library.config.fields import config_of, fields_of, made_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.input.strict_json import parse, read_row
from gemmill.library.launch import LaunchSpec

SCHEMA_VERSION = 3
"""Raised whenever the meaning of a stored field changes: older entries then become misses."""
MAX_BYTES = 32 << 20
"""Most bytes of an artifact on disk, and of what a store keeps beside them."""
MAX_HEADER_BYTES = 1 << 20
"""Most bytes of its header: a hundred times what the longest epilogue takes."""
MAX_CUBIN_BYTES = 32 << 20
"""Most bytes of a cubin: a hundred times the largest."""

_MAGIC = b"gemmill\x01"
_PREFIX = struct.Struct("<8sQQ32s")
"""Magic, bytes of the header, bytes of the compressed cubin, SHA-256 of both."""
_HEADER = {"config", "launch", "resources", "provenance", "cubin_bytes", "signature", "edited"}
"""Keys of the header. The signature is none: who made a kernel is said beside it, :mod:`gemmill.runtime.storage.trust`.
The last stands there, as true, in edited kernels alone."""
_DECIDES = ("config", "launch", "provenance", "edited")
"""Those of them that decide what it is: its key is of these."""
_LEVEL = 9
"""Cubins shrink sixfold; the highest levels gain 8% for fifteen times the time."""


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
    toolkit_digest: str
    """SHA-256 of the headers of CUTLASS, CCCL and CUDA that these include, wherever they come from."""
    options: tuple[str, ...]
    """Options that decide the outcome: NVRTC's, and ``strip=`` and ``chain=`` of what is done to the cubin after it,
    with the digest of the code that does it."""
    nvrtc_version: str
    cutlass_version: str
    cccl_version: str
    cudart_version: str
    schema_version: int
    """:data:`SCHEMA_VERSION` of the gemmill that made it."""
    gemmill_version: str
    """For people; no part of the key."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Provenance:
        """What ``dataclasses.asdict`` makes of it, read back from JSON.

        Raises:
            ValueError: a field is missing, unknown, of another type, or the schema is another.
        """
        if isinstance(content, dict) and (schema := content.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
            maker = content.get("gemmill_version")
            raise ValueError(
                f"its schema is {schema!r:.20}, made by gemmill {maker!r:.20}; it must be {SCHEMA_VERSION}"
            )
        return read_row("provenance", content, cls)


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
    is_edited: bool = False
    """Whether its source is a page that somebody edited, not what its config emits. Name and key then tell of it."""

    def __repr__(self) -> str:
        return f"<Artifact {self.name}, a cubin of {len(self.cubin):,} bytes>"

    @cached_property
    def name(self) -> str:
        """Kernel name; of an edited kernel with the digest of its source."""
        name = kernel_name(self.config)
        return edited_name(name, self.provenance.source_digest) if self.is_edited else name

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the cubin as it is loaded, in hex: the identity that measurements are kept under."""
        return hashlib.sha256(self.cubin).hexdigest()

    @cached_property
    def key(self) -> str:
        """Where the store keeps it."""
        return artifact_key(self.config, self.launch, self.provenance, self.is_edited)

    def to_bytes(self) -> bytes:
        """One self-contained, checksummed run of bytes."""
        header = {
            "config": self.config,
            "launch": self.launch,
            "resources": self.resources,
            "provenance": self.provenance,
            "cubin_bytes": len(self.cubin),
            "signature": None,
            **({"edited": True} if self.is_edited else {}),
        }
        head = canonical(header)
        body = zstandard.ZstdCompressor(level=_LEVEL).compress(self.cubin)
        return _PREFIX.pack(_MAGIC, len(head), len(body), hashlib.sha256(head + body).digest()) + head + body

    @staticmethod
    def from_bytes(data: bytes, key: str | None = None) -> Artifact:
        """The inverse of :meth:`to_bytes`. What is read fits together, and no more memory is taken than it has;
        whether it is true is for :mod:`gemmill.runtime.storage.verification`.

        Args:
            data: the bytes.
            key: what :attr:`key` must be, if anything.

        Raises:
            ValueError: the bytes are truncated, damaged, of another schema or key, or something else altogether.
        """
        if len(data) < _PREFIX.size or not data.startswith(_MAGIC):
            raise ValueError("no artifact of this version of gemmill")
        _, head_bytes, body_bytes, checksum = _PREFIX.unpack_from(data)
        content = memoryview(data)[_PREFIX.size :]
        if len(content) != head_bytes + body_bytes:
            raise ValueError(f"{len(content)} bytes where {head_bytes + body_bytes} should be")
        if head_bytes > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {head_bytes:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError("checksum mismatch")
        try:
            header = parse(bytes(content[:head_bytes]))
            artifact = _read(header, content[head_bytes:])
        except (AttributeError, KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
            raise ValueError(f"not readable by this version of gemmill: {error}") from error
        # By the header as it was parsed: JSON encodes that in a third of the time which the dataclasses take.
        if key is not None and _key(**{name: header[name] for name in _DECIDES if name in header}) != key:
            raise ValueError(f"holds {artifact.name}, made otherwise than its key says")
        return artifact


def _read(header: Any, body: memoryview) -> Artifact:
    """The artifact of a header and of a compressed cubin."""
    provenance, size = Provenance.of(header["provenance"]), header["cubin_bytes"]
    if unknown := header.keys() - _HEADER:
        raise ValueError(f"its header has {sorted(unknown)!r:.80} besides what it must have")
    if header["signature"] is not None:
        raise ValueError("it is signed, and this version of gemmill can check no signature")
    config = GemmConfig(**made_of(header["config"]))
    if not are_valid(fields := fields_of(config)):
        config = config_of(fields)  # which says what is wrong
    if header.get("edited", True) is not True:
        raise ValueError(f"edited is {header['edited']!r:.20}; it must be true, or left out")
    launch, cubin = read_row("launch", header["launch"], LaunchSpec), _decompressed(body, size)
    if f"\0{launch.entry}\0".encode() not in cubin:  # another kernel's
        raise ValueError(f"its cubin has no {launch.entry!r:.200}")
    return Artifact(
        config,
        launch,
        cubin,
        read_row("resources", header["resources"], Resources),
        provenance,
        "edited" in header,
    )


def _decompressed(body: memoryview, size: object) -> bytes:
    """A cubin of a size that two places state, before any memory is taken for it."""
    stated = zstandard.frame_content_size(body)
    if type(size) is not int or size != stated or not 0 <= size <= MAX_CUBIN_BYTES:
        most = f"{MAX_CUBIN_BYTES:,}"
        raise ValueError(
            f"its cubin has {size!r:.30} bytes by the header, {stated:,} by its frame; at most {most} are read"
        )
    return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)


def artifact_key(config: GemmConfig, launch: LaunchSpec, provenance: Provenance, is_edited: bool = False) -> str:
    """Content address of an artifact before it exists: SHA-256, in hex, of everything that decides what it will be.

    The config and the launch facts stand beside the source because an entry carries them too; versions of NVRTC and of
    all headers because the same source compiles differently; the options because they are not in the source; the
    schema because older entries mean something else. An edited kernel is never what its config emits, even where its
    page says the same.
    """
    edited = {"edited": True} if is_edited else {}
    return _key(config=config, launch=launch, provenance=_fields(provenance), **edited)


def _key(*, provenance: Mapping[str, Any], **others: Any) -> str:
    """The key of parts of a header, :data:`_DECIDES`."""
    decides = {name: value for name, value in provenance.items() if name != "gemmill_version"}
    return hashlib.sha256(canonical({"provenance": decides, **others})).hexdigest()


def canonical(value: object) -> bytes:
    """A value as JSON, dataclasses as their fields: equal values of equal types, and no others, have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_fields).encode()


def _fields(item: object) -> dict[str, Any]:
    """The fields of a dataclass, as ``dataclasses.asdict`` has them, but not copied, nor their own fields."""
    kind: Any = type(item)
    return {name: getattr(item, name) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
