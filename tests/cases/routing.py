"""What ``route`` and ``combine`` must give, by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.cases.ptx import fused


def routed(ids: Any, experts: int) -> tuple[Any, Any, Any]:
    """Offsets, rows and places of ids (tokens, slots)."""
    flat = np.where((ids >= 0) & (ids < experts), ids, experts).reshape(-1)
    order = np.argsort(flat, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    places[flat == experts] = -1
    offsets = np.searchsorted(flat[order], np.arange(experts), side="right")
    rows = order // max(1, ids.shape[1])
    return offsets.astype(np.int32), rows.astype(np.int32), places.reshape(ids.shape).astype(np.int32)


def combined(y: Any, places: Any, weights: Any = None, add: Any = None) -> Any:
    """The sums in float32, before they are rounded, of float32 values."""
    sums = np.zeros((len(places), y.shape[1]), np.float32) if add is None else add.copy()
    for token, of_token in enumerate(places):
        for slot, place in enumerate(of_token):
            if 0 <= place < len(y):
                weight = np.float32(1 if weights is None else weights[token, slot])
                sums[token] = fused(np.full_like(sums[token], weight), y[place], sums[token])
    return sums
