"""The kernel that splits f32, assembled as the driver would and carried out on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import nvjitlink
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.ptx import Kernel, Memory

from gemmill.emitters.splitting import BLOCK, JOB, JOBS, THREADS, VECTOR, emit_splitting
from gemmill.library.dtypes import DTYPES, SPLIT

LINE = 128
LEAST = 2.0**-133
HARD = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2**-126, 2**-149, -(2**-140), 3.4028235e38, 1 + 2**-23, 2**-120],
    np.float32,
)


@pytest.mark.parametrize("dtype", SPLIT)
def test_ptx_assembles(dtype: str) -> None:
    text = emit_splitting(DTYPES[dtype]).encode() + b"\0"
    linker = nvjitlink.create(1, ["-arch=sm_90"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), "splitting")
        nvjitlink.complete(linker)
        assert nvjitlink.get_linked_cubin_size(linker) > 0
    finally:
        nvjitlink.destroy(linker)


def split(dtype: str, operands: list[Any]) -> list[Any]:
    """The components of operands of shape (matrices, rows, columns), as (matrices, components, rows, columns)."""
    memory, jobs, begin, results = Memory(), b"", 0, []
    components = DTYPES[dtype].components
    for x in operands:
        matrices, rows, columns = x.shape
        copied = -(-2 * columns // LINE) * LINE
        into = np.full((matrices, components, rows, copied // 2), 0x7FC1, np.uint16)
        results.append(into)
        base = x.base if x.base is not None else x
        source = memory.put(base) + x.ctypes.data - base.ctypes.data
        counts = matrices * rows, rows, columns, begin
        jobs += JOB.pack(source, memory.put(into), x.strides[1], copied, x.strides[0], *counts)
        begin += -(-matrices * rows * -(-columns // VECTOR) // BLOCK)
    for _ in range(JOBS - len(operands)):
        jobs += JOB.pack(*(0,) * 8, begin)
    with np.errstate(invalid="ignore"):
        Kernel(emit_splitting(DTYPES[dtype])).launch(memory, jobs, begin, THREADS)
    return [into[..., : x.shape[2]] for into, x in zip(results, operands, strict=True)]


def as_f32(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def drawn(shape: tuple[int, int, int], offset: int, pad: int, seed: int) -> Any:
    """Values of all exponents, among them hard ones, at any alignment of an element."""
    rng = np.random.default_rng(seed)
    matrices, rows, columns = shape
    memory = rng.integers(0, 1 << 32, offset + matrices * rows * (columns + pad) + 1, np.uint32).view(np.float32)
    hard = rng.random(memory.size) < 0.1
    memory[hard] = rng.choice(HARD, hard.sum())
    view = memory[offset : offset + matrices * rows * (columns + pad)].reshape(matrices, rows, columns + pad)
    return view[..., :columns]


extents = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 70))


@given(shape=extents, other=extents, offset=st.integers(0, 3), pad=st.integers(0, 5), seed=st.integers(0, 99))
def test_three_components_add_up_to_the_element(
    shape: tuple[int, int, int], other: tuple[int, int, int], offset: int, pad: int, seed: int
) -> None:
    operands = [drawn(shape, offset, pad, seed), drawn(other, 0, 4, seed + 1)]
    for x, components in zip(operands, split("bf16x6", operands), strict=True):
        high, middle, low = (as_f32(components[:, i]) for i in range(3))
        finite = np.isfinite(x)
        assert np.array_equal(high[~finite], x[~finite], equal_nan=True)
        total = high[finite].astype(np.float64) + middle[finite] + low[finite]
        assert (np.abs(total - x[finite]) <= 3 * LEAST).all()
        assert (np.abs(high) <= np.maximum(np.abs(x), LEAST))[finite].all()
        check_signs(x, components)


@given(shape=extents, seed=st.integers(0, 99))
def test_two_components_hold_16_bits(shape: tuple[int, int, int], seed: int) -> None:
    x = drawn(shape, 1, 0, seed)
    (components,) = split("bf16x3", [x])
    high, low = (as_f32(components[:, i]) for i in range(2))
    finite = np.isfinite(x)
    assert np.array_equal(high[~finite], x[~finite], equal_nan=True)
    error = np.abs(high[finite].astype(np.float64) + low[finite] - x[finite])
    assert (error <= np.maximum(2.0**-16 * np.abs(x[finite]), 2 * LEAST)).all()
    check_signs(x, components)


def check_signs(x: Any, components: Any) -> None:
    """All components have the sign of their element, and are 0 only if it is; beside infinities and NaN they are
    small."""
    signs = np.sign(np.where(np.isnan(x), np.copysign(1, x), x))[:, None]
    values = as_f32(components)
    assert (np.isnan(values) | (np.sign(values) == signs)).all()
    assert (np.abs(values[:, 1:].swapaxes(0, 1)[:, ~np.isfinite(x)]) == LEAST).all()
