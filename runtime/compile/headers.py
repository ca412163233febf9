"""What is in the headers that kernels are compiled with, wherever they come from: versions do not tell of edits.

Of CUTLASS, CCCL and CUDA kernels include some 250 files of 2,600. These are found by following ``#include`` as the
preprocessor does, whatever its conditions, and digested; that takes a tenth of a second. The store remembers the digest
with inode, size and time of each file, and of the folders in which another would be found first; looking at those takes
two milliseconds.
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
"""A file that changed less than this ago may change again without another time."""

_Status = tuple[int, int, int]
"""Inode, size, and nanoseconds of the last change."""


def toolkit_digest(kernel_headers: Path, folders: Sequence[Path], store: Store | None) -> str:
    """SHA-256, free of paths, of the headers in some folders that those in gemmill's own folder include.

    Args:
        kernel_headers: the folder of gemmill's headers, which are not part of it.
        folders: where others are searched, in this order.
        store: what remembers it; without one, headers are read once in a process.
    """
    places = tuple(map(os.path.normpath, (kernel_headers, *folders)))
    if store is None:
        return _read(places)[0]
    key = hashlib.sha256(json.dumps(places).encode()).hexdigest()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = parse(store.get_note("headers", key))
        if all(list(_status(path)) == status for path, status in kept["watched"].items()):
            return str(kept["digest"])
    _read.cache_clear()  # what the store knows has changed, if it knew anything
    digest, watched = _read(places)
    if all(time.time() - changed / 1e9 > _SETTLED_SECONDS for _, _, changed in watched.values()):
        store.put_note("headers", key, json.dumps({"digest": digest, "watched": watched}).encode())
    return digest


@lru_cache
def _read(places: Sequence[str]) -> tuple[str, Mapping[str, _Status]]:
    """The digest, and what it rests on."""
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
    """The file that an ``#include`` means, and its name in its folder, which is empty for gemmill's own; none where
    there is none. Folders where it was looked for before are watched from then on."""
    beside_it = [] if beside is None else [os.path.dirname(beside)]
    for folder in (*beside_it, *places):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(path):
            is_kernel_header = path.startswith(places[0] + os.sep)
            yield path, "" if is_kernel_header else _name(path, places)
            return
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        watched[path] = _status(path)


def _name(path: str, places: Sequence[str]) -> str:
    """The name of a header in the folder that has it."""
    return next((os.path.relpath(path, place) for place in places if path.startswith(place + os.sep)), path)


def _status(path: str) -> _Status:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
