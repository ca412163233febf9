"""Names of edited kernels, whose CUDA source a user changed: the name of the config plus a digest of the source.

``sm90a_…_linear+src.1a2b3c4d5e6f`` ends in the first twelve hex digits of the SHA-256 of the source. No config has such
a name, so :func:`~gemmill.library.config.names.parse_name` rejects it. Only a registry or pack that contains the edited
source has the kernel, and callers must request it by this name.
"""

from __future__ import annotations

import re

from gemmill.library.errors import ConfigError

_MARK = "+"
_DIGITS = 12
_SUFFIX = re.compile(rf"\+src\.[0-9a-f]{{{_DIGITS}}}")


def edited_name(name: str, source_digest: str) -> str:
    """The name of an edited kernel, from the name of its config and the SHA-256 of its source in hex."""
    return f"{name}{_MARK}src.{source_digest[:_DIGITS]}"


def is_edited(name: str) -> bool:
    """Whether a name is that of an edited kernel, even if it is malformed."""
    return _MARK in name


def plain_name(name: str) -> str:
    """The name of the config of a kernel, edited or not; ConfigError if the digest is malformed."""
    plain, mark, rest = name.partition(_MARK)
    if mark and not _SUFFIX.fullmatch(mark + rest):
        raise ConfigError(
            f"{name!r} is not a kernel name: it ends in {mark + rest!r}; the name of an edited kernel must end in "
            f"'+src.' and {_DIGITS} lowercase hex digits"
        )
    return plain
