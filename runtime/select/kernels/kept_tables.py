"""Caches tables of the shipped kernels in the store. Building a table parses names and checks variants against rules,
which takes hundreds of times as long as reading it."""

from __future__ import annotations

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.files import digest_of
from gemmill.library.input.strict_json import parse
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.network import Network
from gemmill.runtime.select.cost.table import FeatureTable

if TYPE_CHECKING:
    from gemmill.runtime.storage.store import Store

_ARRAYS = "swap_ab", "is_fitted", "inputs"
"""Fields of a table that are one array each."""


def kept_table(
    store: Store,
    origin: str,
    types: Collection[str],
    gpu: Gpu,
    key: object,
    network: Network | None,
    make: Callable[[], FeatureTable | None],
) -> FeatureTable | None:
    """Return a table of shipped kernels: from the store, or from ``make``, whose result is then stored.

    Tables for other manifests, rules or GPU properties, and damaged ones, are replaced.

    Args:
        store: the store.
        origin: digest of everything that decides which kernels there are.
        types: types of A and B of the kernels.
        gpu: the GPU.
        key: distinguishes the tables for these types.
        network: the network for the GPU.
        make: makes the table; returns None where there are no such kernels.
    """
    name = hashlib.sha256(repr((gpu.name, sorted(types), key)).encode()).hexdigest()

    def digest(text: str) -> str:
        return hashlib.sha256("\n".join((origin, _costs(), repr(gpu), text)).encode()).hexdigest()

    with suppress(OSError, ValueError, KeyError, TypeError):
        note = parse(store.get_note("tables", name))
        if note["digest"] == digest(note["table"]):
            return _read(parse(note["table"].encode()), gpu, network)
    table = make()
    text = json.dumps(_written(table))
    store.put_note("tables", name, json.dumps({"digest": digest(text), "table": text}).encode())
    return table


@cache
def _costs() -> str:
    """Return the SHA-256, in hex, of the code that makes tables."""
    return digest_of(Path(__file__).parents[1], "**/*.py")


def _written(table: FeatureTable | None) -> Any:
    """Return a table as a JSON value; its arrays are concatenated and compressed."""
    if table is None:
        return None
    figures = {name: getattr(table, name) for name in _ARRAYS} | table.columns
    names = {id(family): name for name, family in FAMILIES.items()}
    parts = [
        (names[id(family)], members.start, members.stop, family_columns)
        for family, members, family_columns in table.parts
    ]
    data: list[bytes] = []

    def written(columns: dict[str, Any]) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for name, x in columns.items():
            if isinstance(x, np.ndarray):
                data.append(x.tobytes())
                x = [x.dtype.str, *x.shape]
            entries[name] = x
        return entries

    return {
        "kernels": table.kernels,
        "figures": written(figures),
        "parts": [(*part, written(family_columns)) for *part, family_columns in parts],
        "data": b64encode(zlib.compress(b"".join(data), 1)).decode(),
    }


def _read(content: Any, gpu: Gpu, network: Network | None) -> FeatureTable | None:
    """Return the table that :func:`_written` wrote."""
    if content is None:
        return None
    data, offset = zlib.decompress(b64decode(content["data"])), 0

    def read(columns: dict[str, Any]) -> dict[str, Any]:
        nonlocal offset
        arrays: dict[str, Any] = {}
        for name, x in columns.items():
            if isinstance(x, list):
                dtype, *shape = x
                count = prod(shape)
                x = np.frombuffer(data, dtype, count, offset).reshape(shape)
                offset += x.nbytes
            arrays[name] = x
        return arrays

    figures = read(content["figures"])
    return FeatureTable.of_columns(
        kernels=tuple(SlicedKernel(*kernel) for kernel in content["kernels"]),
        **{name: figures.pop(name) for name in _ARRAYS},
        columns=figures,
        parts=[
            (FAMILIES[name], slice(start, stop), read(family_columns))
            for name, start, stop, family_columns in content["parts"]
        ],
        gpu=gpu,
        network=network,
    )
