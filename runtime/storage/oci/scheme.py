"""How references to packs in OCI registries begin."""

from __future__ import annotations

SCHEME = "oci://"


def is_reference(path: object) -> bool:
    """Whether a pack is named by reference, not by file name."""
    return isinstance(path, str) and path.startswith(SCHEME)
