"""The names of the kernels that the shipped manifests declare, cached in the store.

Expanding the manifests takes longer than everything else before the first launch of a process, and the result only
changes with manifests or rules. The names are read like those in packs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import gemmill.library
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.files import digest_of
from gemmill.library.input.strict_json import parse
from gemmill.runtime.storage.store import Store


def declared_kernels(
    store: Store, arches: Sequence[str], types: Iterable[str], expand: Callable[[], Iterable[GemmConfig]]
) -> Mapping[str, GemmConfig]:
    """Return kernels by name, from the names in the store or from ``expand``, whose names are then stored. Each name is
    parsed when its kernel is first needed.

    Names for other manifests or rules, and damaged ones, are replaced.

    Args:
        store: the store.
        arches: architectures of the kernels.
        types: types of their A and B.
        expand: makes the kernels from the manifests.
    """
    key = hashlib.sha256(json.dumps([arches, sorted(types)]).encode()).hexdigest()
    if (stored := _stored_names(store, key)) is not None:
        return _Named(stored)
    configs = {kernel_name(config): config for config in expand()}
    _store_names(store, key, configs)
    return configs


class _Named(Mapping[str, GemmConfig]):
    """Kernels by name, parsed on demand."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> GemmConfig:
        if name not in self._names:
            raise KeyError(name)
        return parse_name(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def declared_names(store: Store, expand: Callable[[], Iterable[GemmConfig]]) -> Sequence[str]:
    """Return the names of all kernels, of any architecture and types: like :func:`declared_kernels`, but without
    parsing."""
    key = hashlib.sha256(b"all").hexdigest()
    if (stored := _stored_names(store, key)) is not None:
        return stored
    names = [*dict.fromkeys(map(kernel_name, expand()))]
    _store_names(store, key, names)
    return names


def _stored_names(store: Store, key: str) -> list[str] | None:
    """Return the names in the store under a key; None where they are missing, damaged or outdated."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = parse(store.get_note("declared", key))
        if note["digest"] == _digest(note["kernels"]):
            return list(note["kernels"])
    return None


def _store_names(store: Store, key: str, names: Iterable[str]) -> None:
    content = {"digest": _digest(names), "kernels": [*names]}
    store.put_note("declared", key, json.dumps(content, indent=0).encode())


def _digest(names: Iterable[str]) -> str:
    """Return the digest of names and of everything that decides them."""
    return hashlib.sha256("\n".join((origin(), *names)).encode()).hexdigest()


@cache
def origin() -> str:
    """Return the SHA-256, in hex, of the shipped manifests and of the code that expands them: all of ``library/``."""
    return digest_of(Path(gemmill.library.__path__[0]).parent, "library/**/*.py", "manifests/*.yaml")
