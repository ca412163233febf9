"""``route`` and ``combine`` from tensors to results: bound as on a GPU, carried out on the host."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.ptx import Kernel, as_f32, rounded
from tests.cases.routing import Bits, Host, combined, routed

from gemmill.emitters import combining, gathering, routing
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import DTypeName
from gemmill.runtime.launch.routing import combine_job, gather_job, route_job
from gemmill.runtime.operands.experts import transposed
from gemmill.runtime.operands.routing import BoundGather, bind_combine, bind_route
from gemmill.runtime.operands.tensors import TensorView

FLOATS: tuple[DTypeName, ...] = ("bf16", "f16", "f32")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 300), st.integers(0, 5), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_tokens_are_sorted_by_experts(tokens: int, slots: int, experts: int, wide: bool, seed: int) -> None:
    host, count = Host(seed), tokens * slots
    ids = host.generator.integers(-1, experts + 1, (tokens, slots)).astype(np.int64 if wide else np.int32)
    step = 2 if wide else 1
    bound_ids = TensorView(host.memory.put(ids), ids.shape, (step * slots, step), "s32", 0)
    tensors = [host.tensor("s32", shape) for shape in ((experts,), (count,), (tokens, slots))]
    offsets, rows, places = (view for _, view in tensors)
    bound = bind_route(bound_ids, experts, offsets, rows, places)
    job, ctas = route_job(bound)
    Kernel(routing.emit_routing(*bound.kind)).launch(host.memory, job, ctas, routing.THREADS)
    for (found, _), wanted in zip(tensors, routed(ids, experts), strict=True):
        assert np.array_equal(found.view(np.int32), wanted)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), rows=st.integers(1, 140), height=st.integers(1, 5), dtype=st.sampled_from((*FLOATS, "ue8m0")))
def test_rows_and_their_scales_are_copied(data: st.DataObject, rows: int, height: int, dtype: DTypeName) -> None:
    host = Host(data.draw(st.integers(0, 99)))
    columns, pitch, offset = (data.draw(st.sampled_from(some)) for some in ((1, 6, 72, 1032), (0, 1, 8), (0, 1, 2, 4)))
    turned = dtype in BLOCK_SCALES and data.draw(st.booleans())
    source, index = host.tensor(dtype, (height, columns), pitch, offset), host.tensor("s32", (rows,))
    index[0][...] = host.generator.integers(0, height, rows)
    made = host.tensor(dtype, (columns, rows) if turned else (rows, columns))
    bits, out = (made[0].T, transposed(made[1])) if turned else made
    bound = BoundGather(source[1], index[1], out)
    job, ctas = gather_job(bound)
    size = source[0].itemsize
    text = gathering.emit_gathering_scales(size) if bound.is_turned else gathering.emit_gathering_rows(bound.width)
    Kernel(text).launch(host.memory, job, ctas, gathering.THREADS)
    assert np.array_equal(bits, source[0][index[0]])


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_one_element_are_copied_wherever_they_lie(dtype: DTypeName) -> None:
    """The stride within a row of one scale is that of a row: it is no size."""
    host = Host(0)
    (source, rows), (index, of_index) = host.tensor(dtype, (4, 1)), host.tensor("s32", (3,))
    index[...] = (3, 0, 3)
    made, columns = host.tensor(dtype, (1, 3))
    bound = BoundGather(rows, of_index, transposed(columns))
    job, ctas = gather_job(bound)
    Kernel(gathering.emit_gathering_rows(bound.width)).launch(host.memory, job, ctas, gathering.THREADS)
    assert np.array_equal(made.T, source[[3, 0, 3]])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 3), slots=st.integers(0, 10), height=st.integers(0, 5))
def test_rows_are_added_up(data: st.DataObject, tokens: int, slots: int, height: int) -> None:
    host = Host(data.draw(st.integers(0, 99)))
    columns = data.draw(st.sampled_from((1, 7, 40, 130, 1032)))

    def drawn(shape: tuple[int, int]) -> Bits:
        pitch, offset = (data.draw(st.sampled_from((0, 1, 8))) for _ in range(2))
        return host.tensor(data.draw(st.sampled_from(FLOATS)), shape, pitch, offset)

    y, out = drawn((height, columns)), drawn((tokens, columns))
    weights = drawn((tokens, slots)) if data.draw(st.booleans()) else (None, None)
    add = drawn((tokens, columns)) if data.draw(st.booleans()) else (None, None)
    places, view = host.tensor("s32", (tokens, slots), 1)
    places[...] = host.generator.integers(-2, height + 2, places.shape).astype(np.int32).view(np.uint32)
    bound = bind_combine(y[1], view, weights[1], add[1], out[1])
    job, ctas = combine_job(bound)
    Kernel(combining.emit_combining(bound.kind)).launch(host.memory, job, ctas, combining.THREADS)
    values = [None if x is None else as_f32(bits, x.dtype) for bits, x in (y, weights, add)]
    wanted = rounded(combined(values[0], places.view(np.int32), *values[1:]), out[1].dtype)
    assert np.array_equal(out[0], wanted.reshape(tokens, columns))
