"""Pages that somebody edited, in place of what a config emits: which kernel they are of, and what they may not hold."""

from __future__ import annotations

import re
from dataclasses import replace

from gemmill.emitters.emit import EmittedSource, emit
from gemmill.library.config.edited import edited_name
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import CompileError, ConfigError

MAX_BYTES = 1 << 20
"""Most bytes of a page: a hundred times the longest that is emitted."""
_SPEC = re.compile(r"\bgemmill_(\w+)_spec\b")
"""The facts that each kernel exports, by which a page says whose it is."""
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b(.*)$", re.MULTILINE)
_PLACE = re.compile(r"[ \t]*<(?!/)(?!.*\.\./)[^>\n]+>.*")
"""What may stand behind ``#include``: a file of the header folders, whose digests and versions an artifact names."""


def config_of_page(text: str) -> GemmConfig:
    """The config whose kernel a page defines, by the name in it.

    Raises:
        ConfigError: the page names none, or several, or what it names is no kernel name.
    """
    names = [*dict.fromkeys(_SPEC.findall(text))]
    if len(names) != 1:
        fault = f"names {len(names)} kernels, {', '.join(names[:3])}" if names else "names no kernel"
        raise ConfigError(f"the page {fault} as gemmill_NAME_spec does; say which it is of: --kernel NAME")
    return parse_name(names[0])


def edited(config: GemmConfig, text: str) -> EmittedSource:
    """A page as the source of a config's kernel: launched as what the config emits, and called by its digest too.

    Raises:
        ConfigError: a legality rule refuses the config.
        CompileError: what the page is compiled to would depend on more than its digest tells of.
    """
    source = replace(emit(config), text=text, is_edited=True)
    source = replace(source, name=edited_name(source.name, source.digest))
    if "\0" in text:
        raise CompileError(f"{source.name}: the page holds a NUL character, behind which nothing is compiled")
    if (size := len(text.encode())) > MAX_BYTES:
        raise CompileError(f"{source.name}: the page has {size:,} bytes; at most {MAX_BYTES:,} are compiled")
    for match in _INCLUDE.finditer(text):
        if not _PLACE.fullmatch(match[1]):
            line = text.count("\n", 0, match.start()) + 1
            raise CompileError(
                f"{source.name}: line {line}: {match[0].strip()!r:.120}: a page includes <files> of the header folders "
                "alone, since its digest tells of no other; paste what it needs into the page"
            )
    return source
