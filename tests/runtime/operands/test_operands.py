"""Binding tensors to operands, checked by carrying out the GEMM that the binding describes on raw memory."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from tests.cases.plain import bound

from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import OperandError
from gemmill.runtime.launch.batch_parts import parts_of
from gemmill.runtime.operands.binding import matmul_shape
from gemmill.runtime.operands.call_keywords import OPERANDS, PLACES
from gemmill.runtime.operands.gemm import Addresses, Gemm
from gemmill.runtime.operands.matrices import Operand
from gemmill.runtime.operands.tensors import TensorView

Array = np.ndarray[Any, np.dtype[np.float32]]
UNMOVED: Addresses = (0,) * len(OPERANDS)


def read(array: Array, **changes: Any) -> TensorView:
    """A view of numpy memory that claims to be on GPU 0."""
    fields: dict[str, Any] = {
        "ptr": array.ctypes.data,
        "shape": array.shape,
        "strides": tuple(step // array.itemsize for step in array.strides),
        "dtype": "f32",
        "device": 0,
        "owner": array,
    }
    return TensorView(**(fields | changes))


def matrices(
    operand: Operand,
    batch: tuple[int, ...],
    rows: int,
    columns: int,
    columns_contiguous: str,
    memory: Array,
    shift: int,
) -> Array:
    """The matrices an operand describes, as a writable view of the memory they lie in, so many bytes on."""
    row, column = operand.row_stride, operand.column_stride
    if operand.major != "any":
        assert (row, column) == (
            (operand.stride, column if columns == 1 else 1)
            if operand.major == columns_contiguous
            else (row if rows == 1 else 1, operand.stride)
        )
    first = (operand.ptr + shift - memory.ctypes.data) // memory.itemsize
    outer = [operand.batch_stride * step for step in operand.batch_steps or (1,)]
    steps = [step * memory.itemsize for step in (*outer, row, column)]
    return as_strided(memory.ravel()[first:], (*batch, rows, columns), steps, writeable=True)


def carry_out(gemm: Gemm, memory: dict[str, Array], shift: Addresses = UNMOVED) -> None:
    """D = A @ B + C on the memory that each operand points into, so many bytes on."""
    p, batch = gemm.problem, gemm.nested or (gemm.problem.batch,)
    assert prod(batch) == p.batch
    by = {name: shift[PLACES[operand.name]] for name, operand in gemm.operands.items()}
    a = matrices(gemm.a, batch, p.m, p.k, "k", memory["a"], by["a"])
    b = matrices(gemm.b, batch, p.k, p.n, "mn", memory["b"], by["b"])
    d = matrices(gemm.d, batch, p.m, p.n, "n", memory["d"], by["d"])
    result = a @ b
    if gemm.c is not None:
        result += matrices(gemm.c, batch, p.m, p.n, "n", memory["c"], by["c"])
    d[...] = result


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], output: bool = False) -> tuple[Array, Array]:
    """An array of a shape inside its memory: padded, transposed in its last two axes or in the outer ones, the same
    along some of these, and at an offset."""
    swap = len(shape) > 1 and draw(st.booleans())
    stored = (*shape[:-2], shape[-1], shape[-2]) if swap else shape
    crossed = len(shape) == 4 and draw(st.booleans())
    if crossed:
        stored = (stored[1], stored[0], *stored[2:])
    padded = tuple(extent + draw(st.integers(0, 2)) for extent in stored[-2:])
    offset = draw(st.integers(0, 3))
    spacious = (*stored[:-2], *padded)
    count = int(np.prod(spacious, dtype=int))
    memory = np.random.default_rng(draw(st.integers(0, 99))).integers(-8, 8, offset + count + 1).astype(np.float32)
    inside: tuple[Any, ...] = (*(slice(extent) for extent in stored), ...)
    array = memory[offset : offset + count].reshape(spacious)[inside]
    if swap:
        array = array.swapaxes(-1, -2)
    if crossed:
        array = array.swapaxes(0, 1)
    if len(shape) == 4 and not output and draw(st.booleans()):
        extents = [draw(st.sampled_from((slice(None), slice(1)))) for _ in shape[:2]]
        array = np.broadcast_to(array[tuple(extents)], shape)
    if len(shape) > 1 and draw(st.integers(0, 3)) == 0:  # neither extent contiguous
        memory = np.repeat(memory, 2)
        steps = [2 * step for step in array.strides]
        array = as_strided(memory[2 * offset :], array.shape, steps, writeable=True)
    return array, memory


@st.composite
def problems(draw: st.DrawFn) -> dict[str, tuple[Array, Array]]:
    extent = st.integers(1, 5)
    m, n, k = draw(extent), draw(extent), draw(extent)
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3), (1, 4), (3, 2)]))
    batch_a, batch_b = draw(st.sampled_from([(batch, batch), (batch, ()), ((), batch), ((1,) * len(batch), batch)]))
    vector_a, vector_b = draw(st.booleans()), draw(st.booleans())
    shape_a = (k,) if vector_a and not batch_a else (*batch_a, m, k)
    shape_b = (k,) if vector_b and not batch_b else (*batch_b, k, n)
    shape_d = matmul_shape(shape_a, shape_b)
    chosen = {"a": draw(layouts(shape_a)), "b": draw(layouts(shape_b)), "d": draw(layouts(shape_d, output=True))}
    if draw(st.booleans()):
        dropped = draw(st.integers(0, max(0, len(shape_d) - 2)))
        chosen["c"] = draw(layouts(shape_d[dropped:]))
    return chosen


@given(problems())
def test_a_binding_describes_exactly_the_matmul(problem: dict[str, tuple[Array, Array]]) -> None:
    arrays = {name: array for name, (array, _) in problem.items()}
    memory = {name: held for name, (_, held) in problem.items()}
    c = read(arrays["c"]) if "c" in arrays else None
    gemm = bound(read(arrays["a"]), read(arrays["b"]), read(arrays["d"]), c)
    event(f"{len(gemm.nested)} strides")
    expected = np.matmul(arrays["a"], arrays["b"]) + arrays.get("c", np.float32(0))
    before = memory["d"].copy()
    arrays["d"][...] = expected
    wanted = memory["d"].copy()
    memory["d"][...] = before
    carry_out(gemm, memory)
    assert np.array_equal(memory["d"], wanted), "D, or memory around it, differs"
    memory["d"][...] = before
    carry_out(gemm.transposed, memory | {"a": memory["b"], "b": memory["a"]})
    assert np.array_equal(memory["d"], wanted), "D, or memory around it, differs with A and B swapped"
    if gemm.nested:
        memory["d"][...] = before
        part, shifts = parts_of(gemm)
        assert len(shifts) * part.problem.batch == gemm.problem.batch
        for shift in shifts:
            carry_out(part, memory, shift)
        assert np.array_equal(memory["d"], wanted), "D, or memory around it, differs where its parts are computed"
    for name in ("a", "b", "d"):
        operand, align = getattr(gemm, name), getattr(gemm.problem, f"{name}_align")
        steps = [operand.ptr, operand.batch_stride * 4 if gemm.problem.batch > 1 else 0]
        assert all(value % align == 0 for value in steps)


def empty(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        ((3, 4), (4, 5), (3, 5)),
        ((4,), (4,), ()),
        ((4,), (4, 5), (5,)),
        ((2, 3, 4), (4,), (2, 3)),
        ((7, 1, 3, 4), (2, 4, 5), (7, 2, 3, 5)),
        ((0, 3, 4), (1, 4, 5), (0, 3, 5)),
        ((3, 0), (0, 5), (3, 5)),
    ],
)
def test_shapes_follow_matmul(a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]) -> None:
    assert matmul_shape(a, b) == shape == np.matmul(empty(*a), empty(*b)).shape


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ((3, 4), (5, 6), "K = 4 columns, b has K = 5 rows"),
        ((2, 3, 4), (3, 4, 5), r"batch extents \[2, 3\] do not broadcast"),
        ((), (3,), "matmul does not take scalars"),
    ],
)
def test_shapes_that_do_not_fit(a: tuple[int, ...], b: tuple[int, ...], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        matmul_shape(a, b)


def test_transposed_weights_are_k_major() -> None:
    gemm = bound(read(empty(16, 32)), read(empty(64, 32).T), read(empty(16, 64)), None)
    assert (gemm.problem.a_major, gemm.problem.b_major, gemm.problem.d_major) == ("k", "k", "n")


def test_one_b_for_a_whole_batch_is_one_gemm() -> None:
    gemm = bound(read(empty(4, 3, 8)), read(empty(8, 16)), read(empty(4, 3, 16)), None)
    assert (gemm.problem.batch, gemm.problem.m) == (1, 12)
    padded = bound(read(empty(4, 5, 8)[:, :3]), read(empty(8, 16)), read(empty(4, 3, 16)), None)
    assert (padded.problem.batch, padded.problem.m, padded.b.batch_stride) == (4, 3, 0)
    one_row = bound(read(empty(4, 3, 8)[:, :1]), read(empty(8, 16)), read(empty(4, 1, 16)), None)
    assert (one_row.problem.batch, one_row.problem.m, one_row.a.stride, one_row.d.stride) == (1, 4, 24, 16)
    strided_k = bound(read(empty(4, 8, 4)[..., :1].swapaxes(1, 2)), read(empty(8, 16)), read(empty(4, 1, 16)), None)
    assert (strided_k.problem.batch, strided_k.problem.a_major) == (4, "mn"), "as rows, neither extent is contiguous"


@pytest.mark.parametrize(("rows", "stacked"), [(1 << 29, True), (1 << 30, False)])
def test_a_batch_becomes_rows_only_as_far_as_kernels_count(rows: int, stacked: bool) -> None:
    tall = read(empty(1), shape=(2, rows, 8), strides=(rows * 8, 8, 1))
    gemm = bound(tall, read(empty(8, 8)), tall, None)
    assert (gemm.problem.m, gemm.problem.batch) == ((2 * rows, 1) if stacked else (rows, 2))


def test_operands_without_a_contiguous_extent_are_bound_as_they_are() -> None:
    a, d = read(empty(8, 32)[:, ::2]), read(empty(8, 64)[:, ::2])
    gemm = bound(a, read(empty(16, 32)), d, read(empty(32)))
    assert (gemm.problem.a_major, gemm.problem.d_major, gemm.problem.c_major) == ("any", "any", "any")
    assert (gemm.a.row_stride, gemm.a.column_stride, gemm.problem.a_align) == (32, 2, 8)
    assert (gemm.c and (gemm.c.row_stride, gemm.c.column_stride)) == (0, 1), "one row for all"
    reversed_rows = read(empty(8, 16), strides=(-16, 1))
    assert bound(reversed_rows, read(empty(16, 32)), d, None).a.row_stride == -16
    column = read(empty(8, 1))
    across = bound(read(empty(8, 16)), read(empty(16, 32)), read(empty(8, 32)), column).c
    assert across
    assert (across.major, across.row_stride, across.column_stride) == ("any", 1, 0)


def test_vectors_are_bound_where_they_are_aligned() -> None:
    memory = np.empty(2048, np.float32)
    start = -memory.ctypes.data // 4 % 4
    x, y = memory[start : start + 64], memory[start + 64 : start + 192]
    gemm = bound(read(np.empty((128, 64), np.float32)), read(x), read(y), None)
    assert (gemm.problem.b_major, gemm.problem.d_major, gemm.problem.b_align, gemm.problem.d_align) == (
        "k",
        "m",
        16,
        16,
    )


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4])
def test_alignment_is_of_address_and_strides(offset: int) -> None:
    memory = np.empty(4096, np.float32)
    start = -memory.ctypes.data // 4 % 4 + offset
    array = memory[start : start + 1024].reshape(32, 32)
    align = {0: 16, 1: 4, 2: 8, 3: 4, 4: 16}[offset]
    gemm = bound(read(array), read(array), read(empty(32, 32)), None)
    assert (gemm.problem.a_align, gemm.problem.b_align) == (align, align)
    assert bound(read(array[:, :30][::2]), read(array[:30]), read(empty(16, 32)), None).problem.a_align == align
    rows_of_30 = memory[start : start + 900].reshape(30, 30)
    assert bound(read(rows_of_30), read(rows_of_30), read(empty(30, 30)), None).problem.a_align == min(align, 8)


def test_empty_k_needs_no_alignment() -> None:
    gemm = bound(read(empty(5, 0), ptr=0), read(empty(0, 16), ptr=0), read(empty(5, 16)), None)
    assert (gemm.problem.k, gemm.problem.a_align, gemm.problem.b_align) == (0, 16, 16)


A, B, D = read(empty(8, 16)), read(empty(16, 32)), read(empty(8, 32))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ((A, B, read(empty(8, 31)), None), r"out has shape \(8, 31\); .* has shape \(8, 32\)"),
        ((A, read(empty(16, 32), device=1), D, None), "b is on GPU 1 and a is on GPU 0"),
        ((A, B, read(empty(8, 32), writable=False), None), "out is read-only"),
        ((A, B, read(empty(8, 32), strides=(0, 1)), None), "overlap"),
        ((A, B, read(empty(8, 32), strides=(16, 1)), None), "overlap"),
        ((A, B, read(empty(8, 32), strides=(2, 2)), None), "overlap"),
        ((A, B, D, read(empty(7, 32))), r"c has shape \(7, 32\), which does not broadcast"),
        (
            (read(empty(8, 1), strides=(1, 1), shape=(8, 1 << 31)), read(empty(1, 8), shape=(1 << 31, 8)), D, None),
            "K is",
        ),
    ],
)
def test_refusals_name_the_operand(tensors: tuple[Any, Any, Any, Any], says: str) -> None:
    a, b, d, c = tensors
    if "K is" in says:
        d = read(empty(8, 8))
    with pytest.raises(OperandError, match=says):
        bound(a, b, d, c)


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("ue8m0", 1)])
def test_parts_of_a_batch_find_scales_of_any_type(dtype: DTypeName, size: int) -> None:
    a, b, d = (empty(3, 2, *shape).transpose(1, 0, 2, 3) for shape in ((4, 256), (256, 5), (4, 5)))
    a_scale, b_scale = (read(empty(2, 3, *shape), dtype=dtype) for shape in ((4, 2), (2, 1)))
    fp8, weights = (read(x, dtype="e4m3") for x in (a, b))
    gemm = bound(fp8, weights, read(d), None, a_scale=a_scale, b_scale=b_scale)
    assert gemm.nested == (2, 3)
    part, shifts = parts_of(gemm)
    assert [shift[PLACES["a_scale"]] for shift in shifts] == [0, 3 * 8 * size]
    assert [shift[PLACES["b_scale"]] for shift in shifts] == [0, 3 * 2 * size]
    assert part.a_scale is not None
    assert (part.a_scale.batch_stride, part.a_scale.dtype) == (8, dtype)
