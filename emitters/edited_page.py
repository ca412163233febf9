"""Edited sources, which replace the text that a config emits: identification of their kernel, and restrictions."""

from __future__ import annotations

import re
from dataclasses import replace

from gemmill.emitters.emit import SOURCE_FILE, EmittedSource, emit
from gemmill.library.config.edited import edited_name
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import CompileError, ConfigError

MAX_BYTES = 1 << 20
"""Most bytes of a source: a hundred times the longest one that gemmill emits."""
_SPEC = re.compile(r"\bgemmill_(\w+)_spec\b")
"""The constants that each kernel exports. Their name identifies the kernel of a source."""
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b(.*)$", re.MULTILINE)
_PLACE = re.compile(r"[ \t]*<(?!/)(?!.*\.\./)[^>\n]+>.*")
"""What ``#include`` can name: a file of the header folders, since an artifact records their digests and versions."""


def config_of_page(text: str) -> GemmConfig:
    """The config of the kernel that a source defines, from the name in it.

    Raises:
        ConfigError: the source names no kernel or several, or the name is not a kernel name.
    """
    names = [*dict.fromkeys(_SPEC.findall(text))]
    if len(names) != 1:
        fault = f"{len(names)} kernels ({', '.join(names[:3])})" if names else "no kernel"
        raise ConfigError(
            f"the source defines {fault}; it must have one symbol gemmill_NAME_spec, or pass --kernel NAME"
        )
    return parse_name(names[0])


def edited(config: GemmConfig, text: str) -> EmittedSource:
    """An edited source of a config's kernel. It has the launch facts of the config, and a name with its digest.

    Raises:
        ConfigError: the config breaks a legality rule.
        CompileError: the result of compilation would depend on files that the digest does not cover.
    """
    source = replace(emit(config), text=text, is_edited=True)
    source = replace(source, name=edited_name(source.name, source.digest))
    if "\0" in text:
        raise CompileError(f"{source.name}: the source contains a NUL character; remove it")
    if (size := len(text.encode())) > MAX_BYTES:
        raise CompileError(f"{source.name}: the source has {size:,} bytes; the limit is {MAX_BYTES:,}")
    for match in _INCLUDE.finditer(text):
        if not _PLACE.fullmatch(match[1]):
            line = text.count("\n", 0, match.start()) + 1
            raise CompileError(
                f"{SOURCE_FILE}:{line}: {match[0].strip()!r:.120}: an edited source can only include <files> of "
                "the header folders; copy other code into the source"
            )
    return source
