"""Copies into aligned memory, carried out on memory of the host and read back as the kernel would."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.plain import bound, call_of
from tests.runtime.operands.test_operands import layouts, matrices, read

from gemmill.emitters.copies import JOB
from gemmill.library.epilogues.parse import PLAIN
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.realign import realign
from gemmill.runtime.operands.binding import _bind_matrices
from gemmill.runtime.operands.tensors import TensorView

extents = st.integers(1, 40)


@given(data=st.data(), m=extents, n=extents, k=extents, batch=st.integers(1, 3), shared=st.booleans())
def test_copies_hold_what_the_operands_hold(
    data: st.DataObject, m: int, n: int, k: int, batch: int, shared: bool
) -> None:
    a, memory_a = data.draw(layouts((batch, m, k)))
    b, memory_b = data.draw(layouts((k, n) if shared else (batch, k, n)))
    c, memory_c = data.draw(layouts((batch, m, n)))
    out = np.empty((batch, m, n), np.float32)
    gemm = _bind_matrices(
        call := call_of(read(a), read(b), read(out), read(c), tf32=True), call.tensors, PLAIN, may_stack=False
    )
    names = [name for name in "abc" if getattr(gemm, name).major != "any"]
    there, copies = realign(gemm, names)
    assert [copy.name for copy in copies] == names
    size = copies[-1].end if copies else 0
    memory = np.full(size // 4 + 64, np.nan, np.float32)
    base = memory.ctypes.data + -memory.ctypes.data % tma.LINE
    for copy in copies:
        source, to, stride, copied, matrix, size, all_rows, rows, vectors, _ = JOB.unpack(copy.job(0))
        source, to = source + getattr(gemm, copy.name).ptr, to + base
        assert 16 * (vectors - 1) < size <= 16 * vectors <= copied
        for row in range(all_rows):
            assert (to + row * copied) % tma.LINE == 0
            ctypes.memmove(to + row * copied, source + row // rows * matrix + row % rows * stride, size)
    p = gemm.problem
    shapes = {"a": (p.m, p.k, "k", memory_a), "b": (p.k, p.n, "mn", memory_b), "c": (p.m, p.n, "n", memory_c)}
    for copy in copies:
        rows, columns, contiguous, own = shapes[copy.name]
        before, after = getattr(gemm, copy.name), getattr(there, copy.name)
        assert (after.ptr, after.align, bool(after.batch_stride)) == (tma.ALIGNMENT, 16, bool(before.batch_stride))
        copied = matrices(after._replace(ptr=base + copy.offset), (p.batch,), rows, columns, contiguous, memory, 0)
        assert np.array_equal(copied, matrices(before, (p.batch,), rows, columns, contiguous, own, 0))
    assert base + size <= memory.ctypes.data + memory.nbytes


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "major"),
    [
        ((300, 100), (104, 1), 0, "k"),
        ((300, 100), (101, 1), 0, "k"),
        ((300, 100), (96, 1), 0, "k"),  # rows overlap, but TMA reads them
        ((300, 100), (97, 1), 0, "k"),
        ((300, 100), (0, 1), 0, "any"),
        ((300, 100), (-104, 1), 0, "any"),
        ((2, 100), ((1 << 39) - 1, 1), 2, "k"),
        ((2, 100), ((1 << 39), 1), 0, "any"),  # further apart than a box of TMA
        ((1, 100), (200, 2), 0, "mn"),  # rows of an element
        ((1, 100), (800, 8), 0, "mn"),
        ((1, 1 << 30), (1 << 30, 1), 2, "k"),
    ],
)
def test_what_is_contiguous_along_an_extent_has_its_major(
    shape: tuple[int, int], strides: tuple[int, int], offset: int, major: str
) -> None:
    a = TensorView(0x1000 + offset, shape, strides, "bf16", 0)
    b = TensorView(0x100000, (shape[1], 8), (8, 1), "bf16", 0)
    d = TensorView(0x200000, (shape[0], 8), (8, 1), "bf16", 0)
    assert bound(a, b, d, None).a.major == major
