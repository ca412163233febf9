"""``lora``: what its operands may be, and its launches, carried out on the host. Nothing needs a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cases.exporter import on_gpu
from tests.cases.ptx import Kernel, as_f32, rounded
from tests.cases.routing import Host, routed

import gemmill
from gemmill.emitters import combining, expanding, routing, shrinking
from gemmill.emitters.adapting import THREADS
from gemmill.emitters.combining import emit_combining
from gemmill.library.errors import OperandError
from gemmill.runtime.api.launch_sequence import Addresses
from gemmill.runtime.api.lora import BoundLora, bind_lora
from gemmill.runtime.launch.lora import expand_job, shrink_job
from gemmill.runtime.launch.routing import combine_job, route_job
from gemmill.runtime.operands import lora as operands
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
        ({"out": on_gpu((64, 384), strides=(192, 1))}, "out has strides .* so its elements overlap"),
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
        ({"a": on_gpu((5, 136, 256)), "b": on_gpu((5, 384, 136))}, False),
        ({"a": on_gpu((5, 0, 256)), "b": on_gpu((5, 384, 0))}, False),
        ({"b": on_gpu((5, 0, 16)), "y": on_gpu((64, 0)), "out": on_gpu((64, 0))}, True),
        ({"a": on_gpu((0, 16, 256)), "b": on_gpu((0, 384, 16))}, True),
        ({"a": on_gpu((5, 16, 256), strides=(4096, 1, 16))}, False),
        ({"b": on_gpu((5, 384, 16), address=PLACE + 8)}, False),
        ({"y": on_gpu((64, 384), strides=(385, 1))}, False),
        ({**ROUTING, "adapter_ids": None, "offsets": on_gpu((5,), "s32", strides=(2,))}, False),
    ],
)
def test_tensors_that_the_kernels_of_adapters_take(changed: dict[str, Any], directly: bool) -> None:
    assert any(isinstance(step, BoundAdaptation) for step in bound(**changed).steps) == directly


def test_a_scale_above_the_range_of_f32_is_infinite() -> None:
    (step,) = bound(factor=1e300).steps
    assert isinstance(step, BoundAdaptation)
    assert expanding.JOB.unpack(expand_job(step)[0])[-1] == float("inf")


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
                found.append(shrinking.JOB.unpack(shrink_job(step)[0])[:5])
                found.append(expanding.JOB.unpack(expand_job(step)[0])[:7])
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
                first, second = shrinking.emit_shrink(step.shrinking), expanding.emit_expand(step.expansion)
                run(first, shrink_job(step), THREADS)
                run(second, expand_job(step), THREADS)


CASES = (
    ("ids", (1, 3, 24, 8, 8), (False, False, False)),
    ("wide", (5, 3, 1288, 8, 264), (True, True, False)),
    ("ids", (20, 3, 280, 24, 264), (True, False, True)),
    ("sorted", (19, 35, 64, 16, 72), (False, False, True)),
    ("routing", (40, 2, 136, 128, 24), (True, False, False)),
    ("k16", (20, 3, 24, 8, 264), (True, True, True)),
    ("k16, routing", (5, 35, 1288, 24, 8), (False, False, False)),
)
"""How tokens find their adapters; tokens, adapters, hidden, rank and columns; y, in place, scales of tokens."""


@pytest.mark.parametrize(("how", "extents", "has"), CASES, ids=str)
@pytest.mark.parametrize("tall", [1, 1024])
def test_launches_add_the_product_of_each_adapter(
    how: str, extents: tuple[int, ...], has: tuple[bool, ...], tall: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operands, "TALL", tall)
    monkeypatch.setattr(operands, "SMS", 4)
    monkeypatch.setattr(operands, "OF_ADAPTER", 1)
    monkeypatch.setattr(operands, "FEW", 0 if how == "sorted" else 1 << 16)
    host = Host(0)
    tokens, adapters, hidden, rank, columns = extents
    has_y, in_place, has_scales = has
    shapes = {"x": (tokens, hidden), "a": (adapters, rank, hidden), "b": (adapters, columns, rank)}
    tensors = {name: host.tensor("bf16", shape) for name, shape in shapes.items()}
    for made, _ in tensors.values():  # whole numbers, most of them 0, whose sums bf16 has
        drawn = host.generator.integers(-1, 2, made.shape) * (host.generator.random(made.shape) < 0.25)
        made[...] = rounded(drawn.astype(np.float32), "bf16")
    ids: Any = host.generator.integers(-1, adapters + 1, tokens).astype(np.int64 if how == "wide" else np.int32)
    if how == "wide":
        ids[::3] += 1 << 32  # no id, though its low half is one
    of_ids = TensorView(host.memory.put(ids), (tokens,), (ids.itemsize // 4,), "s32", 0)
    y, of_y = host.tensor("f32", (tokens, columns), 4)
    y[...] = np.float32(2.0).view(np.uint32)
    out, of_out = (y, of_y) if has_y and in_place else host.tensor("f32", (tokens, columns))
    scales, of_scales = host.tensor("f32", (tokens,))
    views: dict[str, TensorView] = {name: x for name, (_, x) in tensors.items()}
    views |= {"out": of_out} | ({} if "routing" in how else {"adapter_ids": of_ids})
    if "routing" in how:
        for name, wanted in zip(ROUTED, routed(ids[:, None], adapters), strict=True):
            stored, views[name] = host.tensor("s32", wanted.shape)
            stored[...] = wanted.view(np.uint32)
    views |= {"y": of_y} if has_y else {}
    views |= {"scale": of_scales} if has_scales else {}
    factors = scales.view(np.float32).copy() if has_scales else np.full(tokens, 0.5, np.float32)

    def allocate(shape: tuple[int, ...], _: Any) -> TensorView:
        return TensorView(host.memory.put(np.zeros(shape, np.uint8)), shape, (1,), "u8", 0)

    options = {"stream": 0, "bits": "k16" if "k16" in how else "any"}
    one = bind_lora(views, lora_extents(views), 1.0 if has_scales else 0.5, options, allocate)
    kinds = [type(step) for step in one.steps]
    assert (BoundRoute in kinds) == (how in ("sorted", "k16"))
    assert (BoundAdaptation in kinds) == ("k16" not in how)
    carried_out(host, one)
    x, a, b = (as_f32(tensors[name][0], "bf16") for name in "xab")
    start = np.float32(2 if has_y else 0)
    for token, adapter in enumerate(ids.tolist()):
        wanted = np.full(columns, start)
        if 0 <= adapter < adapters:
            wanted = wanted + factors[token] * (b[adapter] @ (a[adapter] @ x[token]))
        assert np.allclose(out[token].view(np.float32), wanted, rtol=1e-6, atol=1e-6)
