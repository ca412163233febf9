"""The kernel that splits f32, assembled as the driver would and carried out on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import nvjitlink
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.examples import examples
from tests.cases.ptx import Kernel, Memory

from gemmill.emitters import magnitudes
from gemmill.emitters.magnitudes import emit_magnitudes
from gemmill.emitters.splitting import BLOCK, JOB, JOBS, THREADS, VECTOR, emit_splitting
from gemmill.library.dtypes import DTYPES, SPLIT

LINE = 128
LEAST = 2.0**-133
HARD = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2**-126, 2**-149, -(2**-140), 3.4028235e38, 1 + 2**-23, 2**-120],
    np.float32,
)


@pytest.mark.parametrize("text", [*(emit_splitting(DTYPES[name]) for name in SPLIT), emit_magnitudes()])
def test_ptx_assembles(text: str) -> None:
    ptx = text.encode() + b"\0"
    linker = nvjitlink.create(1, ["-arch=sm_90"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, ptx, len(ptx), "splitting")
        nvjitlink.complete(linker)
        assert nvjitlink.get_linked_cubin_size(linker) > 0
    finally:
        nvjitlink.destroy(linker)


def split(dtype: str, operands: list[Any], turned: bool = False) -> list[Any]:
    """The components of operands of shape (matrices, rows, columns), as (matrices, components, rows, columns). Those of
    f16 are scaled by the magnitudes of rows, or of columns if the operands are turned."""
    memory, jobs, begin, results = Memory(), b"", 0, []
    components = DTYPES[dtype].components
    for x in operands:
        matrices, rows, columns = x.shape
        copied = -(-2 * columns // LINE) * LINE
        into = np.full((matrices, components, rows, copied // 2), 0x7FC1, np.uint16)
        results.append(into)
        base = x.base if x.base is not None else x
        source = memory.put(base) + x.ctypes.data - base.ctypes.data
        to, largest = memory.put(into), magnitudes_of(x, turned)
        scales = memory.put(largest) - to, largest.strides[0], *((0, 4) if turned else (4, 0))
        counts = matrices * rows, rows, columns, begin
        jobs += JOB.pack(source, to, x.strides[1], copied, x.strides[0], *scales, *counts)
        begin += -(-matrices * rows * -(-columns // VECTOR) // BLOCK)
    for _ in range(JOBS - len(operands)):
        jobs += JOB.pack(*(0,) * 12, begin)
    with np.errstate(invalid="ignore"):
        Kernel(emit_splitting(DTYPES[dtype])).launch(memory, jobs, begin, THREADS)
    return [into[..., : x.shape[2]] for into, x in zip(results, operands, strict=True)]


def magnitudes_of(x: Any, turned: bool) -> Any:
    """The bits of the largest magnitudes of rows or columns."""
    return np.ascontiguousarray((x.view(np.uint32) & 0x7FFFFFFF).max(1 if turned else 2))


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


@examples(10)
@given(shape=extents, offset=st.integers(0, 3), turned=st.booleans(), seed=st.integers(0, 99))
def test_two_components_of_f16_hold_23_bits_above_the_least_of_a_row(
    shape: tuple[int, int, int], offset: int, turned: bool, seed: int
) -> None:
    x = drawn(shape, offset, 2, seed)
    if seed % 2:
        x[~np.isfinite(x)] = 1  # rows beside infinities have another scale
    (components,) = split("f16x3", [x], turned)
    high, low = (components[:, i].view(np.float16).astype(np.float64) for i in range(2))
    power = 2 * ((141 - np.maximum(magnitudes_of(x, turned) >> 23, 1).astype(int)) // 2)
    finite = np.isfinite(x)
    power = np.broadcast_to(power[:, None, :] if turned else power[:, :, None], x.shape)[finite]
    scaled = np.ldexp(x[finite].astype(np.float64), power)
    assert (np.abs(high[finite]) <= 2.0**15).all()
    error = np.abs(high[finite] + low[finite] - scaled)
    assert (error <= np.maximum(2.0**-23 * np.abs(scaled), 2.0**-25)).all()
    assert np.array_equal(low[~finite], x[~finite], equal_nan=True)
    numbers = ~np.isnan(x)
    assert np.array_equal(np.sign(high[numbers]), np.sign(x[numbers]))  # products with infinities depend on the sign
    assert (np.abs(high[~finite]) == 1).all()


@examples(5)
@given(shape=extents, offset=st.integers(0, 3), pad=st.integers(0, 5), along=st.booleans(), seed=st.integers(0, 99))
def test_magnitudes_are_the_largest_of_rows_and_columns(
    shape: tuple[int, int, int], offset: int, pad: int, along: bool, seed: int
) -> None:
    operands = [drawn(shape, offset, pad, seed), drawn((1, 3, 40), 0, 1, seed + 1)]
    memory, jobs, begin, results = Memory(), b"", 0, []
    for x, turned in zip(operands, (not along, along), strict=True):
        found = np.full((x.shape[0], x.shape[2 if turned else 1]), 0xFFFFFFFF, np.uint32)
        results.append((found, magnitudes_of(x, turned)))
        base = x.base if x.base is not None else x
        source = memory.put(base) + x.ctypes.data - base.ctypes.data
        strides = (4, x.strides[1]) if turned else (x.strides[1], 4)
        rows = magnitudes.ROWS[not turned]
        counts = found.shape[1], x.shape[1 if turned else 2], rows, begin
        jobs += magnitudes.JOB.pack(source, memory.put(found), *strides, x.strides[0], *counts)
        begin += x.shape[0] * -(-found.shape[1] // rows)
    Kernel(emit_magnitudes()).launch(memory, jobs, begin, magnitudes.THREADS)
    for found, wanted in results:
        assert np.array_equal(found, wanted)
