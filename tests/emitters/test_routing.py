"""The kernels that route tokens to experts and add up their rows: assembled as the driver would, and carried out on the
host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import nvjitlink
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.ptx import Kernel, Memory, as_f32, rounded
from tests.cases.routing import combined, routed

from gemmill.emitters import combining, routing
from gemmill.emitters.combining import SLOTS, Combination, emit_combining
from gemmill.emitters.gathering import WIDTHS, emit_gathering_rows, emit_gathering_scales
from gemmill.emitters.ptx import BITS
from gemmill.emitters.routing import CLUSTER, STEP, WARPS, cluster_for, clusters, division, emit_routing, segment_for

KINDS = (
    Combination("bf16", "bf16", None, "f32", SLOTS, 8),
    Combination("bf16", "f32", "bf16", "bf16", 3, 8),
    Combination("f16", "bf16", "f32", None, 1, 4),
    Combination("f32", "f16", "f16", "f16", SLOTS, 4),
    Combination("f32", "f32", "f32", "f32", 2, 1),
    Combination("bf16", "f16", None, None, SLOTS, 2),
    Combination("f16", "bf16", "bf16", "f32", SLOTS, 1),
)


def assemble(text: str, arch: str) -> None:
    data = text.encode() + b"\0"
    linker = nvjitlink.create(1, [f"-arch={arch}"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, data, len(data), "kernel")
        nvjitlink.complete(linker)
        assert nvjitlink.get_linked_cubin_size(linker) > 0
    finally:
        nvjitlink.destroy(linker)


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
@pytest.mark.parametrize(("step", "ctas"), [(4, 1), (8, CLUSTER)])
def test_routing_assembles(step: int, ctas: int, arch: str) -> None:
    assemble(emit_routing(step, ctas), arch)


@given(st.integers(0, (1 << 31) - 1), st.one_of(st.integers(1, 99), st.integers(1, (1 << 31) - 1)))
def test_the_slots_of_a_token_divide_exactly(index: int, slots: int) -> None:
    factor, shift = division(slots)
    assert factor < 1 << 32
    assert 2 * index * factor >> 32 + shift == index // slots


@pytest.mark.parametrize("text", [*map(emit_gathering_rows, WIDTHS), *map(emit_gathering_scales, (4, 1))], ids=len)
def test_gathering_assembles(text: str) -> None:
    assemble(text, "sm_90")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_combining_assembles(kind: Combination) -> None:
    assemble(emit_combining(kind), "sm_90")


@pytest.mark.parametrize(
    ("tokens", "slots", "experts", "dtype"),
    [
        (0, 8, 3, np.int32),
        (1, 1, 1, np.int32),
        (5, 3, 4, np.int64),
        (40, 8, 70, np.int32),
        (130, 8, 3, np.int32),  # a warp stops after 64 of its ids
        (WARPS * STEP // 8, 8, 31, np.int32),  # the most ids of one CTA
        (1400, 3, 32, np.int64),
        pytest.param(CLUSTER * WARPS * STEP // 8 + 100, 8, 40, np.int32, marks=pytest.mark.heavy),  # ids are read twice
    ],
)
def test_routing_is_a_stable_sort(tokens: int, slots: int, experts: int, dtype: type) -> None:
    generator = np.random.default_rng(tokens)
    ids: Any = generator.integers(-1, experts + 1, (tokens, slots)).astype(dtype)
    ids[tokens // 2 :: 3] = generator.choice([0, 5, (1 << 31) - 1])  # a skewed part
    if dtype == np.int64:
        ids[::3] += 1 << 32  # the low halves are ids of experts
    memory, count = Memory(), tokens * slots
    offsets, rows, places = (np.full(n, -7, np.int32) for n in (experts, count, count))
    ctas = cluster_for(count)
    addresses = [memory.put(x) for x in (ids, offsets, rows, places)]
    job = routing.JOB.pack(*addresses, count, experts, segment_for(count), *division(slots), 0)
    Kernel(emit_routing(ids.itemsize, ctas)).launch(memory, job, ctas * clusters(experts), routing.THREADS)
    for found, wanted in zip((offsets, rows, places), routed(ids, experts), strict=True):
        assert np.array_equal(found, wanted.reshape(-1))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("slots", [0, 1, 5, 11])
def test_combining_adds_the_slots_in_order(kind: Combination, slots: int) -> None:
    generator = np.random.default_rng(slots)
    tokens, columns, height = 3, kind.elements * 5, 9
    bits = {"y": kind.y, "weights": kind.weights, "add": kind.add}
    shapes = {"y": (height, columns), "weights": (tokens, slots), "add": (tokens, columns)}
    held, values = {}, {}
    for name, dtype in bits.items():
        if dtype:
            drawn = rounded(generator.standard_normal(shapes[name]).astype(np.float32), dtype)
            held[name] = drawn.astype(f"u{BITS[dtype] // 8}")
            values[name] = as_f32(held[name], dtype)
    places = generator.integers(-2, height + 2, (tokens, slots)).astype(np.int32)
    out = np.zeros((tokens, columns), f"u{BITS[kind.out] // 8}")
    memory = Memory()
    at = {name: memory.put(x) for name, x in (held | {"places": places, "out": out}).items()}
    addresses = [at.get(name, 0) for name in ("y", "places", "weights", "add", "out")]
    row = {name: x.strides[0] for name, x in (held | {"places": places, "out": out}).items()}
    element = held["weights"].itemsize if kind.weights else 0
    strides = row["y"], row["places"], 4, row.get("weights", 0), element, row.get("add", 0), row["out"]
    job = combining.JOB.pack(*addresses, *strides, height, slots, columns // kind.elements, 1)
    Kernel(emit_combining(kind)).launch(memory, job, tokens, combining.THREADS)
    wanted = rounded(combined(values["y"], places, values.get("weights"), values.get("add")), kind.out)
    assert np.array_equal(out, wanted.reshape(out.shape).astype(out.dtype))
