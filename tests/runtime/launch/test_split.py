"""Split operands: the layout of their components, carried out on the host and read back as the kernel would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from tests.cases.plain import call_of
from tests.cases.ptx import Kernel, Memory
from tests.runtime.operands.test_operands import layouts, read

from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import PLAIN
from gemmill.library.errors import OperandError
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.split import kernel_of, split
from gemmill.runtime.operands.binding import _bind_matrices

extents = st.integers(1, 40)


@given(data=st.data(), m=extents, n=extents, k=extents, batch=st.integers(1, 3), shared=st.booleans())
def test_components_add_up_to_the_operands(
    data: st.DataObject, m: int, n: int, k: int, batch: int, shared: bool
) -> None:
    a, memory_a = data.draw(layouts((batch, m, k)))
    b, memory_b = data.draw(layouts((k, n) if shared else (batch, k, n)))
    out = np.empty((batch, m, n), np.float32)
    call = call_of(read(a), read(b), read(out), precision="bf16x6")
    gemm = _bind_matrices(call, call.tensors, PLAIN, may_stack=False)
    if "any" in (gemm.a.major, gemm.b.major):
        return
    there, parts = split(gemm, 0)
    memory = Memory()
    components = np.full(parts[-1].end // 2, 0x7FC1, np.uint16)
    into, jobs, begin = memory.put(components), b"", 0
    for part, own in zip(parts, (memory_a, memory_b), strict=True):
        job = part.job(begin)
        source = memory.put(own) + getattr(gemm, part.name).ptr - own.ctypes.data
        offset = int.from_bytes(job[8:16], "little")
        jobs += source.to_bytes(8, "little") + (into + offset).to_bytes(8, "little") + job[16:]
        begin += part.ctas
    kernel = kernel_of("bf16x6")
    Kernel(kernel.text()).launch(memory, jobs, begin, kernel.threads)
    values = (components.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    for part, shape, wanted in zip(parts, ((m, k), (k, n)), (a, b), strict=True):
        operand = getattr(there, part.name)
        matrices, step = operand.outermost(batch, ())
        assert (operand.dtype, operand.align, step * 2 % tma.LINE) == ("bf16", tma.ALIGNMENT, 0)
        is_turned = operand.major == {"a": "mn", "b": "k"}[part.name]
        rows, columns = shape[::-1] if is_turned else shape
        steps = (8 * step * 3, 8 * step, 8 * operand.stride, 8)
        pieces = as_strided(values[part.offset // 2 :], (matrices // 3, 3, rows, columns), steps)
        total = pieces.sum(1)
        total = total.swapaxes(1, 2) if is_turned else total
        assert np.allclose(total, np.broadcast_to(wanted, total.shape), rtol=0, atol=1e-30)


def test_each_kernel_writes_the_components_of_its_type() -> None:
    assert kernel_of("bf16x6").entry == kernel_of("bf16x9").entry != kernel_of("bf16x3").entry
    assert [DTYPES[name].components for name in ("bf16x9", "bf16x6", "bf16x3", "tf32", "f32")] == [3, 3, 2, 1, 1]


@pytest.mark.parametrize("dtype", ["bf16x9", "bf16x6", "bf16x3"])
def test_terms_come_in_the_order_of_their_size(dtype: str) -> None:
    terms = DTYPES[dtype].terms
    assert [sum(term) for term in terms] == sorted((sum(term) for term in terms), reverse=True)
    assert len(set(terms)) == len(terms) == int(dtype[-1])
    assert terms[-1] == (0, 0)


@pytest.mark.parametrize("turned", [False, True])
def test_operands_without_elements_have_strides_that_tma_takes(turned: bool) -> None:
    a, b = np.empty((8, 0), np.float32), np.empty((0, 16), np.float32)
    a, b = (np.asfortranarray(x) if turned else x for x in (a, b))
    call = call_of(read(a), read(b), read(np.empty((8, 16), np.float32)), precision="bf16x9")
    gemm, parts = split(_bind_matrices(call, call.tensors, PLAIN, may_stack=False), 0)
    assert [part.ctas for part in parts] == [0, 0]
    for operand in (gemm.a, gemm.b):
        assert operand.stride > 0 == operand.stride * 2 % tma.LINE
        matrices, step = operand.outermost(1, ())
        assert matrices == 3
        assert step > 0 == step * 2 % tma.LINE


def test_both_operands_must_be_f32() -> None:
    a, b = np.empty((8, 4), np.float32), np.empty((4, 16), np.float32)
    call = call_of(read(a), read(b, dtype="f16"), read(np.empty((8, 16), np.float32)), precision="bf16x6")
    with pytest.raises(OperandError, match="a is f32 and b is f16; precision 'bf16x6' needs two operands of f32"):
        _bind_matrices(call, call.tensors, PLAIN, may_stack=False)
