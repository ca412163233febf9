"""Digests the headers that kernels are compiled with, since their version numbers do not reveal edits.

Kernels include some 250 of the 2,600 files of CUTLASS, CCCL and CUDA. This module finds them by following ``#include``
like the preprocessor, ignoring conditions, and digests them, which takes a tenth of a second. The store caches the
digest with the inode, size and time of each file, and of the folders in which another file would be found first;
checking those takes two milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from gemmill.library.input.strict_json import parse
from gemmill.runtime.storage.store import Store

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")', re.MULTILINE)
_SETTLED_SECONDS = 2
"""A file that changed more recently than this may change again with the same time."""

_Status = tuple[int, int, int]
"""Inode, size, and time of the last change in nanoseconds."""


def toolkit_digest(kernel_headers: Path, folders: Sequence[Path], store: Store | None) -> str:
    """Return the SHA-256, independent of paths, of the headers that gemmill's own headers include from other folders.

    Args:
        kernel_headers: the folder of gemmill's headers, which are not part of the digest.
        folders: folders that are searched for others, in this order.
        store: caches the digest; without one, headers are read once per process.
    """
    places = tuple(map(os.path.normpath, (kernel_headers, *folders)))
    if store is None:
        return _read(places)[0]
    key = hashlib.sha256(json.dumps(places).encode()).hexdigest()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        note = parse(store.get_note("headers", key))
        if all(list(_status(path)) == status for path, status in note["watched"].items()):
            return str(note["digest"])
    _read.cache_clear()  # the cached state has changed, if there was any
    digest, watched = _read(places)
    if all(time.time() - changed / 1e9 > _SETTLED_SECONDS for _, _, changed in watched.values()):
        store.put_note("headers", key, json.dumps({"digest": digest, "watched": watched}).encode())
    return digest


@lru_cache
def _read(places: Sequence[str]) -> tuple[str, Mapping[str, _Status]]:
    """Return the digest, and the files and folders that it depends on."""
    watched: dict[str, _Status] = {}
    names: dict[str, str] = {}
    todo = [(path, "") for path in sorted(str(path) for path in Path(places[0]).rglob("*.cuh"))]
    digest = hashlib.sha256()
    while todo:
        path, name = todo.pop()
        if path in names:
            continue
        names[path] = name
        watched[path] = _status(path)
        content = Path(path).read_bytes()
        if name:
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        for system, local in _INCLUDE.findall(content):
            todo += _resolve((system or local).decode(errors="replace"), path if local else None, places, watched)
    return digest.hexdigest(), watched


def _resolve(
    name: str, beside: str | None, places: Sequence[str], watched: dict[str, _Status]
) -> Iterator[tuple[str, str]]:
    """Yield the file of an ``#include`` and its name in its folder, which is empty for gemmill's own; nothing where it
    is not found. Folders that were searched before are watched."""
    own_folder = [] if beside is None else [os.path.dirname(beside)]
    for folder in (*own_folder, *places):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(path):
            is_kernel_header = path.startswith(places[0] + os.sep)
            yield path, "" if is_kernel_header else _name(path, places)
            return
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        watched[path] = _status(path)


def _name(path: str, places: Sequence[str]) -> str:
    """Return the name of a header relative to its folder."""
    return next((os.path.relpath(path, place) for place in places if path.startswith(place + os.sep)), path)


def _status(path: str) -> _Status:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
