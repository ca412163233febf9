"""The manifest of a pack in a registry: an OCI image manifest with an artifact type, as image-spec 1.1 describes it.

The pack is a layer as it is, and its signature a second one. The config is the empty one, as the specification advises
for artifacts without configuration: the index of the kernels is in the pack, which has its own checksums. Annotations
depend on the pack alone, so equal packs have equal digests.
"""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gemmill.library.errors import PackError
from gemmill.library.files import is_sha256
from gemmill.library.input.strict_json import parse
from gemmill.runtime.storage.pack import MAX_PACK_BYTES
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES

ARTIFACT: Final = "application/vnd.gemmill.pack.v1"
"""The artifact type, and the media type of the layer with the pack."""
SIGNATURE: Final = "application/vnd.gemmill.pack.signature.v1+json"
"""Media type of the layer with its signature."""
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
_EMPTY: Final = "application/vnd.oci.empty.v1+json"
_LISTS = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
MAX_MANIFEST_BYTES = 1 << 20
"""Largest manifest, in bytes."""
_MOST_BYTES = {ARTIFACT: MAX_PACK_BYTES, SIGNATURE: MAX_SEALED_BYTES}
"""Largest layers, in bytes."""


class Descriptor(NamedTuple):
    """The description of a blob."""

    media_type: str
    digest: str
    """SHA-256, in hex."""
    bytes: int

    @classmethod
    def of(cls, media_type: str, data: builtins.bytes) -> Descriptor:
        """Return the description of bytes."""
        return cls(media_type, hashlib.sha256(data).hexdigest(), len(data))

    def as_json(self) -> dict[str, Any]:
        """Return it as in a manifest."""
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.bytes}


EMPTY_CONFIG: Final = b"{}"
CONFIG = Descriptor.of(_EMPTY, EMPTY_CONFIG)


@dataclass(frozen=True, slots=True)
class PackManifest:
    """The manifest of one pack."""

    pack: Descriptor
    signature: Descriptor | None
    annotations: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return it as JSON; equal manifests have equal bytes."""
        named = [(self.pack, "kernels.pack"), (self.signature, "kernels.pack.sig")]
        layers = [
            {**layer.as_json(), "annotations": {"org.opencontainers.image.title": title}}
            for layer, title in named
            if layer is not None
        ]
        content = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": CONFIG.as_json(),
            "layers": layers,
            "annotations": dict(sorted(self.annotations.items())),
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PackManifest:
        """Read a manifest; members that are not needed are passed over, as the specification requires.

        Raises:
            PackError: it is not the manifest of a pack.
        """
        try:
            content = parse(data)
            if content.get("mediaType") in _LISTS or "manifests" in content:
                raise PackError("it is an index of several manifests; use the digest of one pack")
            if (kind := content.get("artifactType")) != ARTIFACT:
                kind = kind or content["config"]["mediaType"]
                raise PackError(f"its artifact type is {kind!r:.120}; that of a pack is {ARTIFACT!r}")
            layers = [_layer(layer) for layer in content["layers"]]
            annotations = content.get("annotations") or {}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PackError(f"its manifest is invalid: {error!r:.200}") from None
        by_type = {layer.media_type: layer for layer in layers}
        if len(by_type) != len(layers) or ARTIFACT not in by_type or by_type.keys() - {ARTIFACT, SIGNATURE}:
            found = ", ".join(f"{layer.media_type!r:.80}" for layer in layers[:3]) or "none"
            raise PackError(f"its layers are {found}; a pack has one of {ARTIFACT!r} and at most one of {SIGNATURE!r}")
        return cls(by_type[ARTIFACT], by_type.get(SIGNATURE), annotations)


def _layer(fields: Any) -> Descriptor:
    """Return a layer of a manifest; ValueError where it is invalid."""
    media_type, digest, size = fields["mediaType"], fields["digest"], fields["size"]
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or not is_sha256(value):
        raise ValueError(f"the digest {digest!r:.100} of a layer is not sha256: and 64 hex digits")
    most = _MOST_BYTES.get(media_type, MAX_PACK_BYTES)
    if type(size) is not int or not 0 < size <= most:
        raise ValueError(f"the size {size!r:.40} of a layer is not from 1 to {most:,} bytes")
    return Descriptor(media_type, value, size)
