"""The order in which a kernel sums the products along K, as indices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gemmill.library.arithmetic import Arithmetic

ABSENT = -1
"""The index of a product that does not exist: zero."""
_QUAD = 4
"""Threads that share the K of an MMA in a gemv kernel."""


class Order(NamedTuple):
    """The order of the sum of one element of D."""

    slices: tuple[tuple[np.ndarray, ...], ...]
    """For each slice of K, for each of its warps: indices along K in the order of the MMAs' steps."""
    rest: range
    """Indices that a gemv kernel adds at the end, by fused multiply-adds."""


def is_possible(arithmetic: Arithmetic) -> bool:
    """Whether a kernel can have an arithmetic: the shares of warps are whole steps, and only sums by steps that tensor
    cores add at once have parts."""
    least = arithmetic.products
    if least == 0 or arithmetic.step == "k4":
        return arithmetic == Arithmetic(arithmetic.step)
    if arithmetic.vector:
        shape = re.fullmatch(r"(\d+)([xn])(\d+)", arithmetic.vector)
        held = _QUAD * int(shape[1]) * (int(shape[3]) if shape[2] == "x" else 1) if shape else 0
        return held > 0 and held % least == 0 and held * arithmetic.warps == arithmetic.unit
    return arithmetic.warps == 1 or (arithmetic.unit > 0 and arithmetic.unit % (arithmetic.warps * least) == 0)


def order_of(arithmetic: Arithmetic, n: int, k: int) -> Order:
    """The order of an arithmetic for B of K x N."""
    if arithmetic.vector:
        indices, whole = _gemv(arithmetic, n, k)
        return Order((tuple(_paired(arithmetic, x) for x in indices),), range(whole, k))
    slices = tuple(
        tuple(_paired(arithmetic, _within(k, x)) for x in _shared_by_warps(arithmetic, begin, end))
        for begin, end in _slices(arithmetic, k)
    )
    return Order(slices, range(k, k))


def _slices(arithmetic: Arithmetic, k: int) -> Iterator[tuple[int, int]]:
    """The slices of K: whole units, of which the first slices have one more (scheduler/splitk.cuh)."""
    unit = arithmetic.slice_unit or k
    least, longer = divmod(-(-k // unit), arithmetic.slices)
    for index in range(arithmetic.slices):
        begin = index * least + min(index, longer)
        yield begin * unit, (begin + least + (index < longer)) * unit


def _shared_by_warps(arithmetic: Arithmetic, begin: int, end: int) -> Iterator[np.ndarray]:
    """Each unit of K is shared by the warps in equal parts (kernel/mma_sync.cuh)."""
    indices = np.arange(begin, end)
    if arithmetic.warps == 1:
        return iter((indices,))
    parts = indices.reshape(-1, arithmetic.warps, arithmetic.unit // arithmetic.warps)
    return (parts[:, warp].reshape(-1) for warp in range(arithmetic.warps))


def _gemv(arithmetic: Arithmetic, n: int, k: int) -> tuple[Iterator[np.ndarray], int]:
    """Indices of each warp of a gemv kernel, and the K that its MMAs cover (kernel/gemv.cuh)."""
    if "x" in arithmetic.vector:
        run, groups = map(int, arithmetic.vector.split("x"))
        whole = k // run * run
    else:
        run, vector = map(int, arithmetic.vector.split("n"))
        groups, whole = 1, (k - (n % vector > 0)) // run * run
    held = 8 if arithmetic.step == "k16x2" else 4
    # A thread holds `groups` runs of `run` elements; the runs of a quad fill the gaps. An MMA takes `held` of each.
    elements = np.arange(groups * run)
    of_thread = elements // run * _QUAD * run + elements % run
    of_quad = (of_thread + np.arange(_QUAD)[:, None] * run).reshape(_QUAD, -1, held).transpose(1, 0, 2).reshape(-1)
    tiles = np.arange(0, max(whole, 1), arithmetic.unit)[:, None]
    width = arithmetic.unit // arithmetic.warps
    return (_within(whole, (tiles + warp * width + of_quad).reshape(-1)) for warp in range(arithmetic.warps)), whole


def _within(k: int, indices: np.ndarray) -> np.ndarray:
    return np.where(indices < k, indices, ABSENT)


def _paired(arithmetic: Arithmetic, indices: np.ndarray) -> np.ndarray:
    """Of every 32, the first two of every four come before the others, where an MMA of fp8 is two of f16
    (mma/halves.cuh)."""
    if arithmetic.step != "k16x2":
        return indices
    padded = np.pad(indices, (0, -len(indices) % 32), constant_values=ABSENT).reshape(-1, 8, 2, 2)
    return padded.transpose(0, 2, 1, 3).reshape(-1)
