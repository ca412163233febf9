"""``lora``: what its operands may be, and its launches, carried out on the host. Nothing needs a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.exporter import on_gpu
from tests.cases.ptx import Kernel, as_f32, rounded
from tests.cases.routing import Host, routed

import gemmill
from gemmill.emitters import adapting, combining, routing
from gemmill.emitters.adapting import emit_expand, emit_shrink
from gemmill.emitters.combining import emit_combining
from gemmill.library.errors import OperandError
from gemmill.runtime.api.launch_sequence import Addresses
from gemmill.runtime.api.lora import BoundLora, bind_lora
from gemmill.runtime.launch.lora import expand_job, shrink_job
from gemmill.runtime.launch.routing import combine_job, route_job
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.lora import ROUTED, BoundAdaptation, lora_extents
from gemmill.runtime.operands.routing import BoundCombine, BoundRoute
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


def bound(factor: float = 1.0, bits: str = "any", **changed: Any) -> BoundLora:
    tensors = {name: view(x, name) for name, x in (TENSORS | changed).items() if x is not None}
    return bind_lora(tensors, lora_extents(tensors), factor, {"stream": 0, "bits": bits}, on_gpu)


def bound_products(**changed: Any) -> tuple[GemmCall, GemmCall, BoundCombine]:
    """The steps after the tokens were sorted."""
    *_, shrink, expand, combine = bound(**{"bits": "k16", **changed}).steps
    assert isinstance(shrink, GemmCall)
    assert isinstance(expand, GemmCall)
    assert isinstance(combine, BoundCombine)
    return shrink, expand, combine


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
    shrink, expand, combine = bound_products(factor=0.5)
    first, second = shrink.problem, expand.problem
    assert (first.rows, first.m, first.n, first.k, first.batch) == ("gathered", 64, 16, 256, 5)
    assert (second.rows, second.m, second.n, second.k, second.batch) == ("stored", 64, 384, 16, 5)
    assert (shrink.options.alpha, expand.options.alpha, expand.options.bits) == (1.0, 0.5, "k16")
    assert combine.add is not None
    assert bound_products(y=None)[2].add is None
    same = on_gpu((64, 384), address=PLACE), on_gpu((64, 384), address=PLACE)
    assert bound_products(y=same[0], out=same[1])[2].add is not None


@pytest.mark.parametrize(
    ("changed", "directly"),
    [
        ({}, True),
        ({**ROUTING, "adapter_ids": None}, True),
        ({"bits": "k16"}, False),
        ({name: on_gpu((257, x)) for name, x in (("x", 256), ("y", 384), ("out", 384))}, False),  # too many tokens
        ({"a": on_gpu((5, 16, 256), strides=(4096, 1, 16))}, False),
        ({"b": on_gpu((5, 384, 16), address=PLACE + 8)}, False),
        ({"y": on_gpu((64, 384), strides=(385, 1))}, False),
        ({**ROUTING, "adapter_ids": None, "offsets": on_gpu((5,), "s32", strides=(2,))}, False),
    ],
)
def test_few_tokens_read_their_adapters_directly(changed: dict[str, Any], directly: bool) -> None:
    if "x" in changed:
        changed = {**changed, "adapter_ids": on_gpu((257,), "s32")}
    assert isinstance(bound(**changed).steps[0], BoundAdaptation) == directly


@pytest.mark.parametrize("bits", ["any", "k16"])
@pytest.mark.parametrize("changed", [{}, {**ROUTING, "adapter_ids": None}, {"scale": on_gpu((64,), "f32"), "y": None}])
def test_launches_take_other_tensors(changed: dict[str, Any], bits: str) -> None:
    """The addresses that a first call found by binding are those that later calls look up."""
    one = bound(bits=bits, **changed)
    found: list[tuple[int, ...]] = []
    for step in one.steps:
        match step:
            case BoundRoute():
                found.append(routing.JOB.unpack(route_job(step)[0])[:4])
            case GemmCall():
                found.append(step.addresses)
            case BoundCombine():
                found.append(combining.JOB.unpack(combine_job(step)[0])[:5])
            case BoundAdaptation():
                found.append(adapting.SHRINK_JOB.unpack(shrink_job(step)[0])[:5])
                found.append(adapting.EXPAND_JOB.unpack(expand_job(step)[0])[:7])
    assert Addresses(one.pieces, one.names).of(one.tensors) == found


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

    def run(text: str, job: tuple[bytes, int], threads: int) -> None:
        Kernel(text).launch(host.memory, *job, threads)

    for step in one.steps:
        match step:
            case BoundRoute():
                run(routing.emit_routing(*step.kind), route_job(step), routing.THREADS)
            case GemmCall():
                multiply(step)
            case BoundCombine():
                run(emit_combining(step.kind), combine_job(step), combining.THREADS)
            case BoundAdaptation():
                first, second = emit_shrink(step.kind.dtype, step.kind.routed), emit_expand(step.kind)
                run(first, shrink_job(step), adapting.THREADS)
                run(second, expand_job(step), adapting.THREADS)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 20), st.sampled_from((1, 3, 35))),
    st.tuples(st.sampled_from((24, 1288)), st.sampled_from((8, 24)), st.sampled_from((8, 264))),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from(("any", "k16")),
    st.integers(0, 99),
)
def test_launches_add_the_product_of_each_adapter(
    counts: tuple[int, int], extents: tuple[int, int, int], has: tuple[bool, ...], bits: str, seed: int
) -> None:
    host, (tokens, adapters), (hidden, rank, columns) = Host(seed), counts, extents
    has_y, in_place, has_scales, is_routed = has
    shapes = {"x": (tokens, hidden), "a": (adapters, rank, hidden), "b": (adapters, columns, rank)}
    tensors = {name: host.tensor("bf16", shape) for name, shape in shapes.items()}
    for made, _ in tensors.values():  # whole numbers, most of them 0, whose sums bf16 has
        drawn = host.generator.integers(-1, 2, made.shape) * (host.generator.random(made.shape) < 0.25)
        made[...] = rounded(drawn.astype(np.float32), "bf16")
    ids, of_ids = host.tensor("s32", (tokens,))
    ids[...] = host.generator.integers(-1, adapters + 1, tokens).astype(np.int32).view(np.uint32)
    y, of_y = host.tensor("f32", (tokens, columns), 4)
    y[...] = np.float32(2.0).view(np.uint32)
    out, of_out = (y, of_y) if has_y and in_place else host.tensor("f32", (tokens, columns))
    scales, of_scales = host.tensor("f32", (tokens,))
    views: dict[str, TensorView] = {name: x for name, (_, x) in tensors.items()}
    views |= {"out": of_out} | ({} if is_routed else {"adapter_ids": of_ids})
    if is_routed:
        for name, wanted in zip(ROUTED, routed(ids.view(np.int32)[:, None], adapters), strict=True):
            stored, views[name] = host.tensor("s32", wanted.shape)
            stored[...] = wanted.view(np.uint32)
    views |= {"y": of_y} if has_y else {}
    views |= {"scale": of_scales} if has_scales else {}
    factors = scales.view(np.float32).copy() if has_scales else np.full(tokens, 0.5, np.float32)

    def allocate(shape: tuple[int, ...], _: Any) -> TensorView:
        return TensorView(host.memory.put(np.zeros(shape, np.uint8)), shape, (1,), "u8", 0)

    options = {"stream": 0, "bits": bits}
    one = bind_lora(views, lora_extents(views), 1.0 if has_scales else 0.5, options, allocate)
    assert isinstance(one.steps[0], BoundAdaptation) == (bits == "any")
    carried_out(host, one)
    x, a, b = (as_f32(tensors[name][0], "bf16") for name in "xab")
    start = np.float32(2 if has_y else 0)
    for token, adapter in enumerate(ids.view(np.int32).tolist()):
        wanted = np.full(columns, start)
        if 0 <= adapter < adapters:
            wanted = wanted + factors[token] * (b[adapter] @ (a[adapter] @ x[token]))
        assert np.allclose(out[token].view(np.float32), wanted, rtol=1e-6, atol=1e-6)
