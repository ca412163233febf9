"""References to artifacts in OCI registries: ``oci://HOST[:PORT]/NAME:TAG`` or ``oci://HOST[:PORT]/NAME@sha256:...``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gemmill.library.errors import PackError
from gemmill.runtime.storage.oci.scheme import SCHEME

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<host>(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[1-9]\d{{0,4}})?)/(?P<name>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@sha256:(?P<digest>[0-9a-f]{64}))?",
    re.ASCII,
)
"""The names and tags of the distribution specification 1.1."""
_MOST_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Reference:
    """The place of an artifact."""

    host: str
    """The registry, in lower case, with its port unless it is the default one."""
    name: str
    """Name of the repository."""
    tag: str | None
    """Its tag; None where the digest alone names it."""
    digest: str | None
    """SHA-256 of its manifest, in hex; None where only a tag names it."""

    @classmethod
    def of(cls, text: str) -> Reference:
        """Parse a reference. With a tag and a digest, the digest counts.

        Raises:
            PackError: it is invalid.
        """
        form = f"expected {SCHEME}HOST[:PORT]/NAME:TAG or {SCHEME}HOST[:PORT]/NAME@sha256:DIGEST"
        is_short = text.startswith(SCHEME) and len(text) <= _MOST_CHARACTERS
        if not is_short or not (found := _REFERENCE.fullmatch(text, len(SCHEME))):
            raise PackError(
                f"{text!r:.200} is not a reference to a pack in a registry: {form}, with a name in lower case"
            )
        if not (found["tag"] or found["digest"]):
            raise PackError(f"{text!r} has neither a tag nor a digest: {form}")
        return cls(found["host"].lower(), found["name"], found["tag"], found["digest"])

    def at(self, digest: str) -> Reference:
        """Return the reference to the same artifact by digest."""
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{SCHEME}{self.host}/{self.name}{tag}{f'@sha256:{self.digest}' if self.digest else ''}"
