"""Keys of kernels by their names, which the store keeps: who has one finds a kernel there without emitting its text.

A key rests on the text of the kernel's source, which takes longer to emit than the kernel to read. What a name leads to
is decided by the code that emits it and computes keys, by all headers and by the toolchain: names are kept in a file of
the store that is called by a digest of these, so that none outlives what it rests on. The digest is made once for each
:class:`KernelKeys`: once in a registry; where kernels are compiled for each of them, which so has what others added.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import gemmill.library
from gemmill.emitters import headers_digest
from gemmill.library.files import digest_of
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.storage.artifact import Artifact, canonical
from gemmill.runtime.storage.declared_kernels import origin
from gemmill.runtime.storage.folder import NoteLines
from gemmill.runtime.storage.store import Store


class KernelKeys:
    """Where a store has the kernels that a compiler makes.

    Args:
        store: keeps keys, and the kernels.
        compiler: makes the kernels.

    Raises:
        OSError: a header cannot be read.
    """

    def __init__(self, store: Store, compiler: Compiler) -> None:
        self._store, self._build = store, build_of(compiler)
        self._lines = NoteLines(store.path, "keys", self._build)  # a line for each kernel
        pairs = (line.split(" ") for line in self._lines.lines)
        self._keys = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def find(self, name: str) -> Artifact | None:
        """The kernel of a name; None where the store does not have it, or has something else under its key."""
        key = self._keys.get(name)
        artifact = None if key is None else self._store.get(key)
        return artifact if artifact is not None and artifact.name == name else None

    def add(self, compiler: Compiler, name: str, key: str) -> None:
        """Remember the key of a kernel that a compiler made, or found: one that looked at the same headers."""
        if self._keys.get(name) != key and build_of(compiler) == self._build:
            self._keys[name] = key
            self._lines.add(f"{name} {key}")


def build_of(compiler: Compiler) -> str:
    """SHA-256, in hex, of all that decides what key the kernel of a name has."""
    decides = origin(), _code(), headers_digest(), compiler.toolkit_digest, compiler.toolchain.versions
    return hashlib.sha256(canonical(decides)).hexdigest()


@cache
def _code() -> str:
    """Digest of the code that emits, compiles and computes keys, beside that of ``library/``."""
    root = Path(gemmill.library.__path__[0]).parent
    return digest_of(root, "emitters/**/*.py", "runtime/compile/**/*.py", "runtime/storage/artifact.py")
