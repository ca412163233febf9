"""Recognises gemmill's files by their content, so that an error can say which file was passed in place of another."""

from __future__ import annotations

import json
import lzma
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

_MOST_BYTES = 16 << 20
"""Larger JSON documents are not parsed."""
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Content:
    """The beginning of a file, and what it holds as JSON or YAML."""

    head: bytes
    json: Any
    """The JSON document, or the first line of JSON Lines; None for other files."""
    keys: frozenset[str]
    """The keys of the JSON object, or those that begin a line, as in YAML."""

    @classmethod
    def of(cls, path: Path) -> _Content:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            document = None
            if head.startswith(b"\xfd7zXZ"):
                with suppress(lzma.LZMAError):
                    head = lzma.LZMADecompressor().decompress(head, _HEAD_BYTES)
            if head.lstrip().startswith((b"{", b"[")):
                with suppress(ValueError, RecursionError):
                    document = json.loads(head.partition(b"\n")[0])
                if document is None:
                    with suppress(ValueError, RecursionError):
                        document = json.loads(head + file.read(_MOST_BYTES))
        if isinstance(document, dict):
            return cls(head, document, frozenset(document))
        keys = re.findall(rb"^([a-z_]+):(?:\s|$)", head, re.MULTILINE)
        return cls(head, document, frozenset(key.decode() for key in keys))

    def says(self, key: str, begins: str) -> bool:
        """Whether the JSON object has a text of this key that begins in this way."""
        return isinstance(self.json, dict) and str(self.json.get(key)).startswith(begins)


class FileKind(NamedTuple):
    """A kind of file."""

    name: str
    origin: str
    """The command that writes it; empty if people write it."""
    holds: Callable[[_Content], bool]
    """Whether a content is of this kind."""

    def __str__(self) -> str:
        """The name and the origin, for errors."""
        return f"{self.name}, from `{self.origin}`" if self.origin else self.name


KINDS: Mapping[str, FileKind] = MappingProxyType(
    {
        "pack": FileKind("a pack", "gemmill pack", lambda x: x.head.startswith(b"gempack")),
        "kernel": FileKind("a kernel of a store", "", lambda x: x.head.startswith(b"gemmill\x01")),
        "lock": FileKind("a lock file", "gemmill lock", lambda x: x.says("schema", "gemmill.lockfile/")),
        "output": FileKind("output of a command with --json", "", lambda x: x.says("schema", "gemmill.")),
        "index": FileKind("an index of packs", "gemmill pack index", lambda x: x.says("type", "gemmill.index/")),
        "signature": FileKind("a signature", "gemmill pack sign", lambda x: x.says("type", "gemmill.")),
        "peak rates": FileKind("a file of peak rates", "gemmill roofline -o", lambda x: "compute_tflops" in x.keys),
        "model": FileKind("a model", "gemmill train", lambda x: {"version", "gpu", "network"} <= x.keys),
        "records": FileKind(
            "a records file",
            "gemmill profile",
            lambda x: x.head.startswith(b"PAR1") or (x.json is not None and "kernel" in x.keys),
        ),
        "private key": FileKind("a private key", "gemmill key new", lambda x: b"PRIVATE KEY-----" in x.head),
        "public key": FileKind("a public key", "gemmill key show", lambda x: x.head.startswith(b"ed25519:")),
        "source": FileKind("a CUDA C++ source", "gemmill emit", lambda x: b"#include <gemmill/" in x.head),
        "cubin": FileKind("a cubin", "gemmill emit --cubin", lambda x: x.head.startswith(b"\x7fELF")),
        "page": FileKind("an HTML page", "", lambda x: x.head[:99].lstrip().lower().startswith(b"<!doctype html")),
        "manifest": FileKind("a manifest", "", lambda x: not {"sets", "extends", "presets"}.isdisjoint(x.keys)),
        "suite": FileKind("a list of shapes", "", lambda x: "shapes" in x.keys),
    }
)
"""gemmill's kinds of files, in the order in which a content is compared with them."""


def wrong_kind(path: Path, expected: str, *, only_ours: bool = False) -> str | None:
    """``is a lock file; it must be a pack, from `gemmill pack```: what a file is that a reader could not read.

    Args:
        path: the file. Pipes cannot be read again, so their kind stays unknown.
        expected: the key in :data:`KINDS` of what it must be.
        only_ours: return None for files that are none of gemmill's, such as a text file.

    Returns:
        The end of a message that begins with the file; None if the file is of the expected kind, and only has a fault.
    """
    if not os.path.isfile(path):
        return None
    try:
        content = _Content.of(path)
    except OSError:
        return None
    kind = next((key for key, kind in KINDS.items() if kind.holds(content)), None)
    if kind == expected or (kind is None and only_ours):
        return None
    return f"is {KINDS[kind].name if kind else _general(content)}; it must be {KINDS[expected]}"


def _general(content: _Content) -> str:
    """What a file is that is none of gemmill's."""
    if not content.head:
        return "an empty file"
    if content.json is not None:
        return "a JSON file"
    printable = not re.search(rb"[\x00-\x08\x0e-\x1f]", content.head)
    return "a text file" if printable else "a binary file"
