"""Split operands: the layout of their components, carried out on the host and read back as the kernel would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from tests.cases.examples import examples
from tests.cases.plain import call_of
from tests.cases.ptx import Kernel, Memory
from tests.runtime.operands.test_operands import layouts, read

from gemmill.library.dtypes import DTYPES, SPLIT, DTypeName
from gemmill.library.epilogues.parse import PLAIN
from gemmill.library.errors import OperandError
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.conversion import ConvertedOperand
from gemmill.runtime.launch.split import kernel_of, kernels_of, split
from gemmill.runtime.operands.binding import _bind_matrices

extents = st.integers(1, 40)


@pytest.mark.parametrize("dtype", ["bf16x6", "f16x3"])
@examples(10, full=40)
@given(data=st.data(), m=extents, n=extents, k=extents, batch=st.integers(1, 3), shared=st.booleans())
def test_components_add_up_to_the_operands(
    dtype: DTypeName, data: st.DataObject, m: int, n: int, k: int, batch: int, shared: bool
) -> None:
    a, memory_a = data.draw(layouts((batch, m, k)))
    b, memory_b = data.draw(layouts((k, n) if shared else (batch, k, n)))
    out = np.empty((batch, m, n), np.float32)
    call = call_of(read(a), read(b), read(out), precision=dtype)
    gemm = _bind_matrices(call, call.tensors, PLAIN, may_stack=False)
    if "any" in (gemm.a.major, gemm.b.major):
        return
    there, parts = split(gemm, 0)
    memory = Memory()
    components = np.full(parts[-1].end // 2, 0x7FC1, np.uint16)
    into, given = memory.put(components), ((gemm.a, memory_a), (gemm.b, memory_b))
    sources = [memory.put(own) + x.ptr - own.ctypes.data for x, own in given]
    scales: Sequence[ConvertedOperand] = [part.magnitudes for part in parts if part.magnitudes]
    for kernel, operands in zip(kernels_of(dtype), (scales, parts) if scales else (parts,), strict=True):
        jobs, begin = b"", 0
        for operand, source in zip(operands, sources, strict=True):
            job = operand.job(begin)
            offset = int.from_bytes(job[8:16], "little")
            jobs += source.to_bytes(8, "little") + (into + offset).to_bytes(8, "little") + job[16:]
            begin += operand.ctas
        Kernel(kernel.text()).launch(memory, jobs, begin, kernel.threads)
    count, values = DTYPES[dtype].components, (components.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    values = components.view(np.float16).astype(np.float64) if scales else values
    for part, shape, wanted in zip(parts, ((m, k), (k, n)), (a, b), strict=True):
        operand = getattr(there, part.name)
        matrices, step = operand.outermost(batch, ())
        assert (operand.dtype, operand.align, step * 2 % tma.LINE) == (dtype[:-2], tma.ALIGNMENT, 0)
        is_turned = operand.major == {"a": "mn", "b": "k"}[part.name]
        rows, columns = shape[::-1] if is_turned else shape
        steps = (8 * step * count, 8 * step, 8 * operand.stride, 8)
        pieces = as_strided(values[part.offset // 2 :], (matrices // count, count, rows, columns), steps)
        total = pieces.sum(1)
        total = total.swapaxes(1, 2) if is_turned else total
        if part.magnitudes:
            bits = np.abs(wanted).max({"a": -1, "b": -2}[part.name], keepdims=True).view(np.uint32)
            wanted = np.ldexp(wanted.astype(np.float64), 2 * ((141 - np.maximum(bits >> 23, 1).astype(int)) // 2))
        assert np.allclose(total, np.broadcast_to(wanted, total.shape), rtol=2.0**-23 if scales else 0, atol=1e-30)


def test_each_kernel_writes_the_components_of_its_type() -> None:
    assert kernel_of("bf16x6").entry == kernel_of("bf16x9").entry != kernel_of("bf16x3").entry
    dtypes = "bf16x9", "bf16x6", "bf16x3", "f16x3", "tf32", "f32"
    assert [DTYPES[name].components for name in dtypes] == [3, 3, 2, 2, 1, 1]


@pytest.mark.parametrize("dtype", SPLIT)
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
