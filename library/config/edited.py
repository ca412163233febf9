"""Names of kernels whose page somebody edited: that of the config, and a digest of the page.

``sm90a_…_linear+src.1a2b3c4d5e6f``: what is behind the plus sign are the first twelve hex digits of the SHA-256 of the
page. No config has such a name, and :func:`~gemmill.library.config.names.parse_name` refuses it: an edited kernel is
what only its registry, or its pack, has, and only who asks for it by this name gets it.
"""

from __future__ import annotations

import re

from gemmill.library.errors import ConfigError

_MARK = "+"
_DIGITS = 12
_SUFFIX = re.compile(rf"\+src\.[0-9a-f]{{{_DIGITS}}}")


def edited_name(name: str, source_digest: str) -> str:
    """The name of a kernel whose config has this name and whose page this SHA-256, in hex."""
    return f"{name}{_MARK}src.{source_digest[:_DIGITS]}"


def is_edited(name: str) -> bool:
    """Whether a name is meant to be that of an edited kernel, well-formed or not."""
    return _MARK in name


def plain_name(name: str) -> str:
    """The name of the config of a kernel, edited or not; ConfigError where what tells of the page is malformed."""
    plain, mark, rest = name.partition(_MARK)
    if mark and not _SUFFIX.fullmatch(mark + rest):
        raise ConfigError(
            f"{name!r} is no kernel name: behind it stands {mark + rest!r}, and of an edited kernel '+src.' and "
            f"{_DIGITS} lowercase hex digits do"
        )
    return plain
