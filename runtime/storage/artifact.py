"""A compiled kernel with everything that its launch needs and a record of what it was made from, and its file
format."""

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
"""Raised whenever the meaning of a stored field changes; older entries then count as missing."""
MAX_BYTES = 32 << 20
"""Largest artifact on disk, and largest note in a store, in bytes."""
MAX_HEADER_BYTES = 1 << 20
"""Largest header, in bytes: a hundred times that of the longest epilogue."""
MAX_CUBIN_BYTES = 32 << 20
"""Largest cubin, in bytes: a hundred times the largest so far."""

_MAGIC = b"gemmill\x01"
_PREFIX = struct.Struct("<8sQQ32s")
"""Magic, bytes of the header, bytes of the compressed cubin, SHA-256 of both."""
_HEADER = {"config", "launch", "resources", "provenance", "cubin_bytes", "signature", "edited"}
"""Keys of the header. ``signature`` is None, since the signature is a separate file, see
:mod:`gemmill.runtime.storage.trust`. ``edited`` is present, as true, only in edited kernels."""
_DECIDES = ("config", "launch", "provenance", "edited")
"""The keys that identify a kernel: its store key is a digest of these."""
_LEVEL = 9
"""Compression level. Cubins shrink to a sixth; the highest levels save another 8% for fifteen times the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of one thread and one CTA of a kernel."""

    registers: int
    """Registers of a thread at launch, before ``setmaxnreg`` moves them between warpgroups."""
    spill_stores: int
    """Bytes of spilled registers stored."""
    spill_loads: int
    """Bytes of spilled registers loaded."""
    stack_bytes: int
    """Stack frame of a thread, in bytes of local memory."""
    static_shared_bytes: int
    """Static shared memory of a CTA, in bytes."""
    dynamic_shared_bytes: int
    """Dynamic shared memory of a CTA, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The inputs of a cubin. It holds no paths, times or hosts, so equal inputs give equal provenance
    everywhere."""

    source_digest: str
    """SHA-256 of the emitted source."""
    headers_digest: str
    """SHA-256 of gemmill's own headers."""
    toolkit_digest: str
    """SHA-256 of the CUTLASS, CCCL and CUDA headers that these include, independent of their location."""
    options: tuple[str, ...]
    """Options that affect the result: NVRTC's, and ``strip=`` and ``chain=`` for the changes to the cubin after
    compilation, with the digest of the code that makes them."""
    nvrtc_version: str
    cutlass_version: str
    cccl_version: str
    cudart_version: str
    schema_version: int
    """:data:`SCHEMA_VERSION` of the gemmill that made it."""
    gemmill_version: str
    """For information only; not part of the key."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Provenance:
        """Read the provenance from JSON, in the form of ``dataclasses.asdict``.

        Raises:
            ValueError: a field is missing, unknown or of another type, or the schema differs.
        """
        if isinstance(content, dict) and (schema := content.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
            maker = content.get("gemmill_version")
            raise ValueError(
                f"its schema is {schema!r:.20} (made by gemmill {maker!r:.20}); it must be {SCHEMA_VERSION}"
            )
        return read_row("provenance", content, cls)


@dataclass(frozen=True)
class Artifact:
    """One compiled kernel."""

    config: GemmConfig
    """Its config."""
    launch: LaunchSpec
    """How it is launched."""
    cubin: bytes
    """Machine code: an ELF file."""
    resources: Resources
    """Registers and memory that it uses."""
    provenance: Provenance
    """What it was made from."""
    is_edited: bool = False
    """Whether its source was edited instead of emitted from its config. Its name and key then depend on the source."""

    def __repr__(self) -> str:
        return f"<Artifact {self.name}, a cubin of {len(self.cubin):,} bytes>"

    @cached_property
    def name(self) -> str:
        """Kernel name; for an edited kernel followed by the digest of its source."""
        name = kernel_name(self.config)
        return edited_name(name, self.provenance.source_digest) if self.is_edited else name

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the cubin as it is loaded, in hex: the identity for measurements."""
        return hashlib.sha256(self.cubin).hexdigest()

    @cached_property
    def key(self) -> str:
        """Key of the kernel in a store."""
        return artifact_key(self.config, self.launch, self.provenance, self.is_edited)

    def to_bytes(self) -> bytes:
        """Return the artifact as self-contained bytes with a checksum."""
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
        """Read what :meth:`to_bytes` wrote. The parts of the result are consistent, and memory use is bounded;
        :mod:`gemmill.runtime.storage.verification` checks whether they are true.

        Args:
            data: the bytes.
            key: the expected :attr:`key`; None: any.

        Raises:
            ValueError: the bytes are truncated, damaged, of another schema or key, or not an artifact.
        """
        if len(data) < _PREFIX.size or not data.startswith(_MAGIC):
            raise ValueError("not an artifact of this version of gemmill")
        _, head_bytes, body_bytes, checksum = _PREFIX.unpack_from(data)
        content = memoryview(data)[_PREFIX.size :]
        if len(content) != head_bytes + body_bytes:
            raise ValueError(f"it has {len(content)} bytes; expected {head_bytes + body_bytes}")
        if head_bytes > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {head_bytes:,} bytes; the limit is {MAX_HEADER_BYTES:,}")
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError("checksum mismatch")
        try:
            header = parse(bytes(content[:head_bytes]))
            artifact = _read(header, content[head_bytes:])
        except (AttributeError, KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
            raise ValueError(f"not readable by this version of gemmill: {error}") from error
        # Compute the key from the parsed header: encoding that as JSON takes a third of the time of encoding the
        # dataclasses.
        if key is not None and _key(**{name: header[name] for name in _DECIDES if name in header}) != key:
            raise ValueError(f"it holds {artifact.name}, whose key differs from the expected one")
        return artifact


def _read(header: Any, body: memoryview) -> Artifact:
    """Return the artifact of a header and a compressed cubin."""
    provenance, size = Provenance.of(header["provenance"]), header["cubin_bytes"]
    if unknown := header.keys() - _HEADER:
        raise ValueError(f"its header has unknown keys: {sorted(unknown)!r:.80}")
    if header["signature"] is not None:
        raise ValueError("it has an embedded signature, which this version of gemmill cannot check")
    config = GemmConfig(**made_of(header["config"]))
    if not are_valid(fields := fields_of(config)):
        config = config_of(fields)  # raises an error that names the fault
    if header.get("edited", True) is not True:
        raise ValueError(f"edited is {header['edited']!r:.20}; it must be true or absent")
    launch, cubin = read_row("launch", header["launch"], LaunchSpec), _decompressed(body, size)
    if f"\0{launch.entry}\0".encode() not in cubin:  # a cubin of another kernel
        raise ValueError(f"its cubin has no kernel {launch.entry!r:.200}")
    return Artifact(
        config,
        launch,
        cubin,
        read_row("resources", header["resources"], Resources),
        provenance,
        "edited" in header,
    )


def _decompressed(body: memoryview, size: object) -> bytes:
    """Return a cubin whose size is stated in two places, checking both before allocating memory."""
    frame_size = zstandard.frame_content_size(body)
    if type(size) is not int or size != frame_size or not 0 <= size <= MAX_CUBIN_BYTES:
        most = f"{MAX_CUBIN_BYTES:,}"
        raise ValueError(
            f"its cubin has {size!r:.30} bytes by the header and {frame_size:,} by its frame; they must be equal, and "
            f"at most {most}"
        )
    return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)


def artifact_key(config: GemmConfig, launch: LaunchSpec, provenance: Provenance, is_edited: bool = False) -> str:
    """Return the content address of an artifact before it exists: SHA-256, in hex, of everything that determines it.

    The key covers the config and the launch facts because an entry carries them. It covers the versions of NVRTC and of
    all headers because the same source compiles differently, and the options because they are not in the source. It
    covers the schema because older entries have another meaning. An edited kernel never has the key of its config's
    kernel, even if the sources are equal.
    """
    edited = {"edited": True} if is_edited else {}
    return _key(config=config, launch=launch, provenance=_fields(provenance), **edited)


def _key(*, provenance: Mapping[str, Any], **others: Any) -> str:
    """Return the key of the parts of a header in :data:`_DECIDES`."""
    decides = {name: value for name, value in provenance.items() if name != "gemmill_version"}
    return hashlib.sha256(canonical({"provenance": decides, **others})).hexdigest()


def canonical(value: object) -> bytes:
    """Return a value as JSON, with dataclasses as their fields. Values have equal bytes exactly if they and their types
    are equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_fields).encode()


def _fields(item: object) -> dict[str, Any]:
    """Return the fields of a dataclass like ``dataclasses.asdict``, but without copies and not recursively."""
    kind: Any = type(item)
    return {name: getattr(item, name) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
