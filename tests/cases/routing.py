"""What ``route`` and ``combine`` must give, by NumPy, and tensors for kernels that are carried out on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.cases.ptx import Memory, fused, rounded

from gemmill.emitters.ptx import BITS
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.runtime.operands.tensors import TensorView


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


Bits = tuple[Any, TensorView]
"""The bits of a tensor, and its view."""


class Host:
    """Tensors in memory of the host, which kernels that are carried out there read and write."""

    def __init__(self, seed: int) -> None:
        self.memory = Memory()
        self.generator = np.random.default_rng(seed)

    def tensor(self, dtype: DTypeName, shape: tuple[int, ...], pitch: int = 0, offset: int = 0) -> Bits:
        """A tensor of random values, whose rows are ``pitch`` elements longer than they need to be, and which begins
        ``offset`` elements after an aligned address."""
        size = DTYPES[dtype].bytes
        row = shape[-1] + pitch
        strides = (shape[-2] * row if len(shape) > 1 else 0, row, 1)[-len(shape) :]
        store = np.zeros(offset + int(np.prod(shape[:-1])) * row, f"u{size}")
        base = self.memory.put(store)
        bits = np.lib.stride_tricks.as_strided(store[offset:], shape, [size * s for s in strides])
        if dtype == "ue8m0":
            bits[...] = self.generator.integers(0, 256, shape)
        elif dtype != "s32":
            values = np.where(self.generator.random(shape) < 0.25, -0.0, self.generator.standard_normal(shape))
            bits[...] = rounded(values.astype(np.float32), dtype)
        return bits, TensorView(base + offset * size, shape, strides, dtype, 0)

    def bits(self, tensor: TensorView) -> Any:
        """The bits of a tensor."""
        size = BITS.get(tensor.dtype, 32) // 8
        data = self.memory.bytes_from(tensor.ptr)
        steps = [step * size for step in tensor.strides]
        return np.lib.stride_tricks.as_strided(data[: len(data) // size * size].view(f"u{size}"), tensor.shape, steps)
