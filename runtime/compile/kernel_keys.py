"""Keys of kernels by name, in the store: with a key, a kernel is found without emitting its source.

A key depends on the source of the kernel, which takes longer to emit than the kernel to read. The key of a name depends
on the code that emits it and computes keys, on all headers and on the toolchain. The store keeps names in a file named
by a digest of these, so that no entry outlives them. The digest is computed once for each :class:`KernelKeys`: once per
registry, and in workers once per kernel, so that they see what others added.
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
from gemmill.runtime.storage.note_lines import NoteLines
from gemmill.runtime.storage.store import Store


class KernelKeys:
    """Locates the kernels of a compiler in a store.

    Args:
        store: holds the keys and the kernels.
        compiler: compiles the kernels.

    Raises:
        OSError: a header cannot be read.
    """

    def __init__(self, store: Store, compiler: Compiler) -> None:
        self._store, self._build = store, build_of(compiler)
        self._lines = NoteLines(store.path, "keys", self._build)  # one line per kernel
        pairs = (line.split(" ") for line in self._lines.lines)
        self._keys = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def find(self, name: str) -> Artifact | None:
        """Return the kernel of a name; None where the store does not have it, or has another one under its key."""
        key = self._keys.get(name)
        artifact = None if key is None else self._store.get(key)
        return artifact if artifact is not None and artifact.name == name else None

    def add(self, compiler: Compiler, name: str, key: str) -> None:
        """Record the key of a kernel from a compiler with the same headers."""
        if self._keys.get(name) != key and build_of(compiler) == self._build:
            self._keys[name] = key
            self._lines.add(f"{name} {key}")


def build_of(compiler: Compiler) -> str:
    """Return the SHA-256, in hex, of everything that decides the key of a kernel's name."""
    decides = origin(), _code(), headers_digest(), compiler.toolkit_digest, compiler.toolchain.versions
    return hashlib.sha256(canonical(decides)).hexdigest()


@cache
def _code() -> str:
    """Return the digest of the code that emits, compiles and computes keys, other than ``library/``."""
    root = Path(gemmill.library.__path__[0]).parent
    return digest_of(root, "emitters/**/*.py", "runtime/compile/**/*.py", "runtime/storage/artifact.py")
