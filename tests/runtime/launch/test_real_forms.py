"""Complex operands: the real product that stands for theirs, carried out on the host with the kernel's real forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import nvjitlink
from hypothesis import event, given
from hypothesis import strategies as st
from tests.cases.plain import call_of
from tests.cases.ptx import Kernel, Memory
from tests.runtime.operands.test_operands import carry_out, layouts, read

from gemmill.emitters.real_forms import emit_real_forms
from gemmill.library.errors import OperandError
from gemmill.runtime.api.read import read_call
from gemmill.runtime.launch.real_forms import as_real, kernel_of
from gemmill.runtime.operands.binding import bind
from gemmill.runtime.operands.call_keywords import DEFAULTS
from gemmill.runtime.operands.gemm import Gemm


@pytest.mark.parametrize("size", [4, 8])
def test_ptx_assembles(size: int) -> None:
    text = emit_real_forms(size).encode() + b"\0"
    linker = nvjitlink.create(1, ["-arch=sm_90"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), "real forms")
        nvjitlink.complete(linker)
        assert nvjitlink.get_linked_cubin_size(linker) > 0
    finally:
        nvjitlink.destroy(linker)


@st.composite
def complex_layouts(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any, output: bool = False) -> tuple[Any, Any]:
    """A complex array, and its memory."""
    array, memory = draw(layouts(shape, output))
    held = memory.astype(dtype)
    held.imag = np.random.default_rng(len(memory)).integers(-8, 8, memory.shape)
    first = (array.ctypes.data - memory.ctypes.data) // memory.itemsize
    steps = [step // memory.itemsize * held.itemsize for step in array.strides]
    return np.lib.stride_tricks.as_strided(held[first:], shape, steps, writeable=True), held


def view(array: Any, sign: int = 1) -> Any:
    return read(array, dtype="f32" if array.itemsize == 8 else "f64", imaginary=sign)


def with_real_forms(gemm: Gemm, memory: dict[str, Any]) -> tuple[Gemm, dict[str, Any]]:
    """The GEMM on real forms as the kernel writes them, and the memory of its operands."""
    there, operands = as_real(gemm, 0)
    kernel, device, jobs, begin = kernel_of(gemm.a.dtype), Memory(), b"", 0
    room = np.full(operands[-1].end // memory["a"].itemsize, np.nan, memory["a"].dtype)
    into = device.put(room)
    for operand in operands:
        job, own = operand.job(begin), memory[operand.name]
        source = device.put(own) + getattr(gemm, operand.name).ptr - own.ctypes.data
        jobs += source.to_bytes(8, "little") + (into + operand.offset).to_bytes(8, "little") + job[16:]
        begin += operand.ctas
        at = room.ctypes.data + operand.offset
        there = there._replace(**{operand.name: getattr(there, operand.name)._replace(ptr=at)})
    jobs += b"".join(
        bytes(kernel.job_bytes - 4) + begin.to_bytes(4, "little") for _ in range(kernel.jobs - len(operands))
    )
    Kernel(kernel.text()).launch(device, jobs, begin, kernel.threads)
    return there, memory | {operand.name: room for operand in operands}


extents = st.integers(1, 9)


@given(
    data=st.data(),
    mnk=st.tuples(extents, extents, extents),
    batches=st.sampled_from([((), ()), ((3,), ()), ((), (3,)), ((3,), (3,)), ((1,), (2,))]),
    signs=st.tuples(st.sampled_from([1, -1]), st.sampled_from([1, -1])),
    dtype=st.sampled_from([np.complex64, np.complex128]),
    has_c=st.booleans(),
)
def test_the_real_product_is_the_complex_one(
    data: st.DataObject, mnk: tuple[int, int, int], batches: Any, signs: tuple[int, int], dtype: Any, has_c: bool
) -> None:
    m, n, k = mnk
    a, memory_a = data.draw(complex_layouts((*batches[0], m, k), dtype))
    b, memory_b = data.draw(complex_layouts((*batches[1], k, n), dtype))
    expected = np.matmul(*(x if sign > 0 else x.conj() for x, sign in zip((a, b), signs, strict=True)))
    d, memory_d = data.draw(complex_layouts(expected.shape, dtype, output=True))
    memory = {"a": memory_a, "b": memory_b, "d": memory_d}
    c = None
    if has_c:
        c, memory["c"] = data.draw(complex_layouts(expected.shape, dtype))
        expected = expected + c
    accumulator: Any = "f32" if dtype is np.complex64 else "f64"
    call = call_of(view(a, signs[0]), view(b, signs[1]), view(d), None if c is None else view(c), accumulator)
    fits = [
        all(x.shape[i] == 1 or x.strides[i] == x.itemsize for x in (d, *([] if c is None else [c]))) for i in (-1, -2)
    ]
    if not any(fits):
        with pytest.raises(OperandError, match="must be contiguous along the same extent"):
            bind(call)
        return
    gemm = bind(call)
    event(f"{gemm.a.real_form is not None} {gemm.b.real_form is not None}")
    there, parts = with_real_forms(gemm, {name: x.view(x.real.dtype) for name, x in memory.items()})
    before = memory_d.copy()
    d[...] = expected
    wanted = memory_d.copy()
    memory_d[...] = before
    carry_out(there, parts)
    assert np.array_equal(memory_d, wanted)


A: Any = np.zeros((4, 6), np.complex64)
B: Any = np.zeros((6, 8), np.complex64)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"b": read(B.real)}, "b is f32 and a is complex64; all must have one complex dtype: pass b.to"),
        ({"b": view(B.astype(np.complex128))}, "b is complex128 and a is complex64; all must have one complex dtype"),
        ({"out": read(np.zeros((4, 8), np.float32))}, "out is f32 and a is complex64"),
        ({"c": view(np.zeros((4, 8), np.complex64), -1)}, "c is the view of a conjugate; only a and b may be"),
        ({"epilogue": "d = relu(acc)"}, "a is complex64, with which epilogue is not supported: leave out epilogue"),
        ({"symmetric": True}, "a is complex64, with which symmetric is not supported: leave out symmetric"),
        ({"a_scale": read(np.zeros((4, 1), np.float32))}, "a is complex64, with which a_scale is not supported"),
        ({"offsets": read(np.zeros(1, np.int32), dtype="s32")}, "with which offsets is not supported"),
        ({"a": read(A, ptr=A.ctypes.data + 4, imaginary=1)}, "complex64 must start at a multiple of 8 bytes"),
        ({"out_dtype": "f32"}, "out is complex64 and out_dtype is f32; they must be equal"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    given = {"a": view(A), "b": view(B), "out": view(np.zeros((4, 8), np.complex64))}
    with pytest.raises(OperandError, match=says):
        read_call(given | changes)


def test_nested_batches_are_refused() -> None:
    a = np.zeros((2, 3, 4, 8), np.complex64).swapaxes(0, 1)
    b, out = np.zeros((3, 2, 8, 4), np.complex64), np.zeros((3, 2, 4, 4), np.complex64)
    with pytest.raises(OperandError, match=r"batch extents \(3, 2\) of complex operands must have one stride"):
        bind(call_of(view(a), view(b), view(out)))


def test_signatures_tell_conjugates_and_parts_apart() -> None:
    out = view(np.zeros((4, 8), np.complex64))
    calls = [call_of(view(A, sign), view(B), out) for sign in (1, -1)]
    assert len({call.signature for call in calls}) == 2
    assert calls[0].options == DEFAULTS._replace(accumulator="f32")
    assert view(A).same_layout(view(A.copy()))
    assert not view(A).same_layout(view(A, -1))
