"""``lora``: what its operands may be, and its launches, carried out on the host. Nothing needs a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.exporter import on_gpu
from tests.cases.ptx import Kernel, as_f32, rounded
from tests.cases.routing import Host

import gemmill
from gemmill.emitters import combining, routing
from gemmill.emitters.combining import emit_combining
from gemmill.library.errors import OperandError
from gemmill.runtime.api.lora import BoundLora, bind_lora
from gemmill.runtime.launch.routing import combine_job, route_job
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.lora import lora_extents
from gemmill.runtime.operands.tensors import TensorView, view

TENSORS = {
    "x": on_gpu((64, 256)),
    "a": on_gpu((5, 16, 256)),
    "b": on_gpu((5, 384, 16)),
    "adapter_ids": on_gpu((64,), "s32"),
    "y": on_gpu((64, 384)),
    "out": on_gpu((64, 384)),
}
ROUTING = {"offsets": on_gpu((5,), "s32"), "rows": on_gpu((64,), "s32"), "places": on_gpu((64, 1), "s32")}
PLACE = 1 << 46


def bound(factor: float = 1.0, **changed: Any) -> BoundLora:
    tensors = {name: view(x, name) for name, x in (TENSORS | changed).items() if x is not None}
    return bind_lora(tensors, lora_extents(tensors), factor, {"stream": 0}, on_gpu)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x": on_gpu((256,))}, r"x has shape \(256,\); it must be \(tokens, H\)"),
        ({"a": on_gpu((16, 256))}, r"a has shape \(16, 256\); it must be \(adapters, rank, H\)"),
        ({"b": on_gpu((5, 16, 384))}, r"b has shape \(5, 16, 384\); .* it must have shape \(5, 16, 16\)"),
        ({"x": on_gpu((64, 128))}, r"x has shape \(64, 128\); .* it must have shape \(64, 256\)"),
        ({"adapter_ids": on_gpu((64, 1), "s32")}, r"adapter_ids has shape .* it must have shape \(64,\)"),
        ({"adapter_ids": on_gpu((64,), "f32")}, "adapter_ids is f32; it must be int32"),
        ({"adapter_ids": on_gpu((64,), "s32", strides=(3,))}, "adapter_ids has strides .* must be contiguous"),
        ({"y": on_gpu((63, 384))}, r"y has shape \(63, 384\)"),
        ({"out": on_gpu((64, 384), "s8")}, "out is s8; it must be bf16, f16 or f32"),
        ({"out": on_gpu((64, 384), strides=(768, 2))}, "out has strides .* its rows must be contiguous"),
        ({"scale": on_gpu((5,), "f32")}, r"scale has shape \(5,\); .* it must have shape \(64,\)"),
        ({"a": on_gpu((5, 16, 256), "f16")}, "a is f16; x, a and b must all be bf16 or all f16"),
        ({"x": on_gpu((64, 256), "f32")}, "x is f32"),
        ({"b": on_gpu((5, 384, 16), gpu=1)}, "b is on GPU 1 and x is on GPU 0"),
        ({"a": on_gpu((5, 12, 256)), "b": on_gpu((5, 384, 12))}, "the rank is 12; it must be a multiple of 8"),
        ({"x": on_gpu((64, 256), strides=(257, 1))}, "the rows of x, 257 elements apart, .* multiples of 16 bytes"),
        ({**ROUTING, "adapter_ids": None, "rows": on_gpu((63,), "s32")}, r"rows has shape \(63,\)"),
        ({"out": on_gpu((64, 384), address=PLACE), "b": on_gpu((5, 384, 16), address=PLACE)}, "out and b overlap"),
    ],
)
def test_what_lora_refuses(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        bound(**changed)


@pytest.mark.parametrize("ids", [on_gpu((64,), "s32"), gemmill.Routing(**ROUTING)], ids=["ids", "routing"])
def test_calls_are_checked_before_memory_is_allocated(ids: Any) -> None:
    for function in (gemmill.lora, gemmill.plan_lora):
        with pytest.raises(OperandError, match=r"b has shape"):
            function(TENSORS["x"], TENSORS["a"], TENSORS["a"], ids)
        with pytest.raises(OperandError, match="x is a Exporter; lora allocates memory with the library of x"):
            function(TENSORS["x"], TENSORS["a"], TENSORS["b"], ids)


def test_products_gather_tokens_and_sums_start_from_y() -> None:
    one = bound(factor=0.5)
    shrink, expand = one.shrink.problem, one.expand.problem
    assert (shrink.rows, shrink.m, shrink.n, shrink.k, shrink.batch) == ("gathered", 64, 16, 256, 5)
    assert (expand.rows, expand.m, expand.n, expand.k, expand.batch) == ("stored", 64, 384, 16, 5)
    assert (one.shrink.options.alpha, one.expand.options.alpha) == (1.0, 0.5)
    assert one.combine.add is not None
    assert bound(y=None).combine.add is None
    assert bound(y=on_gpu((64, 384), address=PLACE), out=on_gpu((64, 384), address=PLACE)).combine.add is not None


@pytest.mark.parametrize("changed", [{}, {**ROUTING, "adapter_ids": None}, {"scale": on_gpu((64,), "f32"), "y": None}])
def test_launches_take_other_tensors(changed: dict[str, Any]) -> None:
    """The addresses that a first call found by binding are those that later calls look up."""
    one = bound(**changed)
    *route, shrink, expand, combine = one.addresses().of(one.tensors)
    assert (shrink, expand) == (one.shrink.addresses, one.expand.addresses)
    assert combine == combining.JOB.unpack(combine_job(one.combine)[0])[:5]
    assert route == ([routing.JOB.unpack(route_job(one.route)[0])[:4]] if one.route else [])


def carried_out(host: Host, one: BoundLora) -> None:
    """Carry out the launches; PTX as it is, products by NumPy."""

    def multiply(gemm: GemmCall) -> None:
        a, b, offsets, out = (host.bits(gemm.tensors[name]) for name in ("a", "b", "offsets", "out"))
        a = a[host.bits(gemm.tensors["rows"])] if "rows" in gemm.tensors else a
        begin = 0
        for adapter, end in enumerate(offsets.view(np.int32).tolist()):
            sums = as_f32(a[begin:end], "bf16") @ as_f32(b[adapter], "bf16")
            out[begin:end] = rounded(sums * np.float32(gemm.options.alpha), "bf16")
            begin = end

    if one.route:
        job, ctas = route_job(one.route)
        Kernel(routing.emit_routing(*one.route.kind)).launch(host.memory, job, ctas, routing.THREADS)
    multiply(one.shrink)
    multiply(one.expand)
    job, ctas = combine_job(one.combine)
    Kernel(emit_combining(one.combine.kind)).launch(host.memory, job, ctas, combining.THREADS)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99))
def test_launches_add_the_product_of_each_adapter(
    tokens: int, adapters: int, has_y: bool, in_place: bool, has_scales: bool, seed: int
) -> None:
    host, hidden, rank, columns = Host(seed), 24, 8, 40
    shapes = {"x": (tokens, hidden), "a": (adapters, rank, hidden), "b": (adapters, columns, rank)}
    tensors = {name: host.tensor("bf16", shape) for name, shape in shapes.items()}
    for bits, _ in tensors.values():  # whole numbers, whose sums bf16 has
        bits[...] = rounded(host.generator.integers(-1, 2, bits.shape).astype(np.float32), "bf16")
    ids, of_ids = host.tensor("s32", (tokens,))
    ids[...] = host.generator.integers(-1, adapters + 1, tokens).astype(np.int32).view(np.uint32)
    y, of_y = host.tensor("f32", (tokens, columns), 3)
    y[...] = np.float32(2.0).view(np.uint32)
    out, of_out = (y, of_y) if has_y and in_place else host.tensor("f32", (tokens, columns))
    scales, of_scales = host.tensor("f32", (tokens,))
    views: dict[str, TensorView] = {name: x for name, (_, x) in tensors.items()}
    views |= {"adapter_ids": of_ids, "out": of_out}
    views |= {"y": of_y} if has_y else {}
    views |= {"scale": of_scales} if has_scales else {}
    factors = scales.view(np.float32).copy() if has_scales else np.full(tokens, 0.5, np.float32)

    def allocate(shape: tuple[int, ...], _: Any) -> TensorView:
        return TensorView(host.memory.put(np.zeros(shape, np.uint8)), shape, (1,), "u8", 0)

    one = bind_lora(views, lora_extents(views), 1.0 if has_scales else 0.5, {"stream": 0}, allocate)
    carried_out(host, one)
    x, a, b = (as_f32(tensors[name][0], "bf16") for name in "xab")
    start = np.float32(2 if has_y else 0)
    for token, adapter in enumerate(ids.view(np.int32).tolist()):
        wanted = np.full(columns, start)
        if 0 <= adapter < adapters:
            wanted = wanted + factors[token] * (b[adapter] @ (a[adapter] @ x[token]))
        assert np.allclose(out[token].view(np.float32), wanted, rtol=1e-6, atol=1e-6)
