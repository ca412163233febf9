"""``moe``: what its operands may be, and its launches, carried out on the host. Nothing needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.exporter import on_gpu
from tests.cases.ptx import Kernel, as_f32, rounded
from tests.cases.routing import Host

import gemmill
from gemmill.emitters import combining, gathering, routing
from gemmill.emitters.combining import emit_combining
from gemmill.emitters.gathering import emit_gathering_rows
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.errors import KeywordError, OperandError
from gemmill.runtime.api.expert_layer import Layer, LayerAddresses, bind_layer
from gemmill.runtime.launch.routing import combine_job, gather_job, route_job
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.narrow_experts import elements_of
from gemmill.runtime.operands.routing import BoundCombine
from gemmill.runtime.operands.tensors import view

TENSORS = {
    "x": on_gpu((64, 256)),
    "w1": on_gpu((16, 192, 256)),
    "w2": on_gpu((16, 256, 96)),
    "topk_ids": on_gpu((64, 8), "s32"),
    "topk_weights": on_gpu((64, 8), "f32"),
    "out": on_gpu((64, 256)),
}

PLACE = 1 << 46


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x": on_gpu((256,))}, r"x has shape \(256,\); it must be \(tokens, H\)"),
        ({"w1": on_gpu((192, 256))}, r"w1 has shape .* it must be \(experts, 2 F, H\), as the activation is `d = silu"),
        ({"w2": on_gpu((16, 96, 256))}, r"w1 has shape .* it must have shape \(16, 512, 256\)"),
        ({"w1": on_gpu((16, 96, 256))}, r"w1 has shape \(16, 96, 256\); .* it must have shape \(16, 192, 256\)"),
        ({"activation": "d = relu(acc)"}, r"w1 has shape \(16, 192, 256\); .* it must have shape \(16, 96, 256\)"),
        ({"w1": on_gpu((16, 184, 256)), "w2": on_gpu((16, 256, 92))}, "N must be a multiple of 16"),
        (
            {"activation": "d = tanh(gate) * up", "w1": on_gpu((16, 184, 256)), "w2": on_gpu((16, 256, 92))},
            "F is 92; for bf16 it must be a multiple of 8",
        ),
        ({"topk_ids": on_gpu((63, 8), "s32")}, r"x has shape \(64, 256\); .* it must have shape \(63, 256\)"),
        ({"topk_ids": on_gpu((64, 8), "f32")}, "topk_ids is f32; it must be int32"),
        ({"topk_ids": on_gpu((64, 8), "s32", strides=(1, 64))}, "topk_ids has strides .* contiguous"),
        ({"topk_weights": on_gpu((64, 7), "f32")}, r"topk_weights has shape \(64, 7\)"),
        ({"topk_weights": on_gpu((64, 8), "s32")}, "topk_weights is s32; it must be bf16, f16 or f32"),
        ({"b2": on_gpu((256,))}, r"b2 has shape \(256,\); .* it must have shape \(16, 256\)"),
        ({"out": on_gpu((64, 255))}, r"out has shape \(64, 255\)"),
        ({"w1": on_gpu((16, 192, 256), "f16")}, "w1 is f16; x, w1 and w2 must all be bf16, all f16 or all e4m3"),
        ({"x": on_gpu((64, 256), "s8")}, "x is s8"),
        ({"x_scale": on_gpu((64, 2), "f32")}, "x_scale is passed and x is bf16"),
        ({"w2": on_gpu((16, 256, 96), gpu=1)}, "w2 is on GPU 1 and x is on GPU 0"),
        ({"x": on_gpu((64, 256), strides=(512, 2))}, "x has strides .* its rows must be contiguous"),
        ({"w1": on_gpu((16, 192, 256), strides=(98304, 512, 2))}, "w1 has strides .* rows or its columns must be cont"),
        ({"activation": "swish"}, "swish"),
        ({"activation": "d = silu(gate"}, "epilogue: "),
        ({"activation": 3}, "epilogue is 3"),
        ({"activation": "d = silu(gate) * up + c"}, "reads c, which a layer of experts does not have"),
    ],
)
def test_what_moe_refuses(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        bound(**changed)


@pytest.mark.parametrize("function", [gemmill.moe, gemmill.plan_moe])
def test_calls_are_checked_before_memory_is_allocated(function: Callable[..., Any]) -> None:
    x, w1, w2, ids, weights, out = TENSORS.values()
    for wanted in (None, out):
        with pytest.raises(OperandError, match=r"w1 has shape"):
            function(x, w2, w2, ids, weights, out=wanted)
        with pytest.raises(OperandError, match=r"x is a Exporter; .*moe allocates memory with the library of x"):
            function(x, w1, w2, ids, weights, out=wanted)


def test_other_keywords_are_refused() -> None:
    with pytest.raises(KeywordError, match=r"unexpected argument 'autotune'"):
        gemmill.moe(*[*TENSORS.values()][:5], autotune=3)
    with pytest.raises(KeywordError, match=r"bias is passed, but the epilogue .* does not use it"):
        bound(operands={"bias": on_gpu((16, 96))})


def bound(operands: Any = None, activation: str = "silu", **changed: Any) -> Layer:
    views = {name: view(x, name) for name, x in (TENSORS | changed).items()}
    return bind_layer(views, activation, operands or {}, {"stream": 0}, on_gpu)


def packed(w_dtype: DTypeName = "u4", activation: str = "silu", operands: Any = None, **changed: Any) -> Layer:
    """A layer whose weights have 4 bits, in groups of 128."""
    tensors = {"w1": on_gpu((16, 192, 128), "u8"), "w2": on_gpu((16, 256, 48), "u8")}
    tensors |= {f"w1_{kind}": on_gpu((16, 2, 192)) for kind in ("scale", "zero")}
    tensors |= {f"w2_{kind}": on_gpu((16, 1, 256)) for kind in ("scale", "zero")}
    views = {name: view(x, name) for name, x in (TENSORS | tensors | changed).items() if x is not None}
    return bind_layer(elements_of(views, w_dtype), activation, operands or {}, {"stream": 0}, on_gpu)


def test_narrow_weights_are_multiplied_as_the_transpose() -> None:
    gate = "g = min(gate8 + bg[n], limit); d = silu(g) * (up8 + bu[n])"
    layer = packed(activation=gate, operands={**{x: on_gpu((16, 96)) for x in ("bg", "bu")}, "limit": 7.0})
    first, second = layer.first.problem, layer.second.problem
    assert (first.m, first.n, first.k, first.batching, first.a_scale) == (192, 512, 256, "ngrouped", "1x128z")
    assert first.epilogue == "g = min(gate8.m + bg.bf16[m], limit); d = silu(g) * (up8.m + bu.bf16[m])"
    assert (second.m, second.n, second.k, second.batching) == (256, 512, 96, "ngrouped")
    names = LayerAddresses(layer)._names
    assert (first.rows, names[1]) == ("stored", ("x", ".rows", ".copy"))
    assert {"w1", "w1_scale", "w1_zero", ".copy", ".inner"} < {*names[2]}
    assert {"w2", "w2_scale", "w2_zero", ".inner", ".y"} < {*names[3]}


OF_E4M3: dict[str, Any] = {
    "x": on_gpu((64, 256), "e4m3"),
    "x_scale": on_gpu((64, 1), "f32"),
    "w1_scale": on_gpu((16, 2, 192), "f32"),
    "w1_zero": None,
    "w2_zero": None,
    "w_dtype": "s4",
}
"""e4m3 tokens with s4 weights."""


def test_e4m3_tokens_have_a_scale_each_beside_s4_weights() -> None:
    layer = packed(**OF_E4M3)
    first, second = layer.first.problem, layer.second.problem
    assert (first.b_dtype, first.a_dtype, first.a_scale, first.promote, first.d_dtype) == (
        *("e4m3", "s4", "1x128", 4, "bf16"),
    )
    assert first.epilogue == "d = silu(gate8.m * a_scale[n]) * (up8.m * a_scale[n])"
    assert (second.b_dtype, second.a_dtype, second.epilogue) == ("bf16", "s4", LINEAR)
    assert [copy.source.dtype for copy in layer.copies] == ["e4m3", "f32"]
    names = LayerAddresses(layer)._names
    assert names[2] == ("x_scale", ".rows", ".copy_scale")
    assert {".copy", ".copy_scale", "w1_scale"} < {*names[3]}


MX = {f"w1_{kind}": on_gpu((16, 8, 192)) for kind in ("scale", "zero")} | {
    f"w2_{kind}": on_gpu((16, 3, 256)) for kind in ("scale", "zero")
}
"""Scales and zero points of groups of 32."""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"w_dtype": "bf16"}, "w1 is u8 .* and w_dtype is bf16; w_dtype says what bytes hold"),
        ({"w1": on_gpu((16, 192, 128))}, "w1 is bf16 .* and w_dtype is u4; w_dtype says what bytes hold"),
        (
            {"w1": on_gpu((16, 192, 128), "u8", strides=(24576, 1, 192))},
            "w1 has strides .* its rows must be contiguous",
        ),
        (
            {"w1": on_gpu((16, 192, 256), "u8")},
            r"w1 has shape \(16, 192, 512\); .* it must have shape \(16, 192, 256\)",
        ),
        ({"w1_scale": on_gpu((16, 192, 2))}, r"w1_scale has shape .*\(16, 2, 192\): pass w1_scale.mT.contiguous\(\)"),
        (
            {"w1_scale": on_gpu((16, 3, 192))},
            r"w1_scale has .*\(16, 2, 192\), one for each row of w1 and group of 128, 64",
        ),
        ({"w1_zero": on_gpu((16, 4, 192))}, r"w1_zero has shape .*\(16, 2, 192\)"),
        ({"w1_scale": on_gpu((16, 2, 192), "f32")}, "w1_scale is f32; it must be bf16, as x is"),
        ({"w1_scale": on_gpu((16, 2, 192), strides=(384, 1, 2))}, "w1_scale has strides .* along the rows of w1"),
        ({"w2_scale": None}, "w2_zero is passed without w2_scale"),
        (
            OF_E4M3 | {"x_scale": None},
            r"x_scale is missing, and x is e4m3: pass a scale for each token, f32 \(tokens, 1\)",
        ),
        (OF_E4M3 | {"w1_zero": on_gpu((16, 2, 192), "f32")}, "w1_zero is passed, and x is e4m3"),
        (
            OF_E4M3 | {"w1_scale": on_gpu((16, 4, 192), "f32")},
            r"w1_scale has shape .* must have shape \(16, 2, 192\), one for each row of w1 and group of 128 along",
        ),
        (OF_E4M3 | {"w_dtype": "u4"}, "w1 is u4; x, w1 and w2 must all be bf16, .* or s4 beside e4m3"),
        (OF_E4M3 | {"x_scale": on_gpu((64, 2), "f32")}, r"x_scale has shape .* must have shape \(64, 1\)"),
        (OF_E4M3 | {"w1_scale": on_gpu((16, 2, 192))}, "w1_scale is bf16; it must be f32 beside e4m3"),
        (OF_E4M3 | {"w2_scale": on_gpu((16, 1, 256), "f32")}, "w2_scale is f32; it must be bf16 beside bf16"),
        ({"w_dtype": "e2m1"}, r"w1_scale has shape .* \(16, 8, 192\), one for each row of w1 and group of 32 along"),
        ({"w_dtype": "e2m1", **MX}, "w1_zero is passed, and w_dtype is e2m1, which has no zero points"),
        ({"w_dtype": "e2m1", **MX, "w1_zero": None, "w2_zero": None}, "w1_scale is bf16; it must be ue8m0"),
        ({"w_dtype": "e2m1", **MX, "w2_scale": None, "w2_zero": None}, "w2_scale is missing: pass the ue8m0 scales"),
        ({"x_scale": on_gpu((64, 2), "f32")}, "x_scale is passed, and the weights are narrower than x"),
        ({"activation": "d = silu(gate) * up"}, r"w1 is u4, and .* no gate but gate8 and up8; .*gemmill.interleaved"),
        ({"activation": "d = silu(gate_half) * up_half"}, "w1 is u4, and .* no gate but gate8 and up8"),
        ({"activation": "d = silu(gate8.m) * up8.m"}, "pairs rows, which are tokens of experts: use gate8 and up8"),
        (
            {"w2": on_gpu((16, 256, 40), "u8"), "w1": on_gpu((16, 160, 128), "u8"), "w1_zero": None, "w2_zero": None}
            | {"w1_scale": on_gpu((16, 2, 160))},
            "F is 80; for u4 weights it must be a multiple of 32",
        ),
        (
            {"x": on_gpu((64, 256), "e4m3"), **dict.fromkeys(("w1_scale", "w1_zero", "w2_scale", "w2_zero"))},
            "w1 is u4; x, w1 and w2 must all be bf16, .* or s4 beside e4m3",
        ),
    ],
)
def test_what_moe_refuses_of_narrow_weights(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        packed(**changed)


def test_problems_have_a_row_for_each_slot() -> None:
    layer = bound(activation="d = silu(gate8 + g[n]) * (up8 + u[n])", operands={x: on_gpu((16, 96)) for x in "gu"})
    first, second = layer.first.problem, layer.second.problem
    assert (first.batching, first.m, first.n, first.k, first.batch) == ("grouped", 512, 192, 256, 16)
    assert (second.batching, second.m, second.n, second.k, second.batch) == ("grouped", 512, 256, 96, 16)
    assert first.epilogue == "d = silu(gate8 + g.bf16[n]) * (up8 + u.bf16[n])"
    assert bound(b2=on_gpu((16, 256))).second.problem.epilogue == "d = acc + b2.bf16[n]"


EIGHT_BITS = {
    "x": on_gpu((64, 256), "e4m3"),
    "w1": on_gpu((16, 256, 256), "e4m3"),
    "w2": on_gpu((16, 256, 128), "e4m3"),
    "x_scale": on_gpu((64, 2), "f32"),
    "w1_scale": on_gpu((16, 2, 2), "f32"),
    "w2_scale": on_gpu((16, 2, 1), "f32"),
}


@pytest.mark.parametrize(("tokens", "rows"), [(64, "gathered"), (256, "stored")], ids=["few", "many"])
def test_the_first_product_of_e4m3_quantises_its_rows(tokens: int, rows: str) -> None:
    shapes: dict[str, Any] = {
        "x": ((tokens, 256), "e4m3"),
        "out": ((tokens, 256), "bf16"),
        "topk_ids": ((tokens, 8), "s32"),
    }
    shapes |= {"topk_weights": ((tokens, 8), "f32"), "x_scale": ((tokens, 2), "f32")}
    tensors = EIGHT_BITS | {name: on_gpu(*given) for name, given in shapes.items()}
    layer = bound({"bias": on_gpu((16, 128))}, "t = gate8 + bias[n]; d = t * up8", **tensors)
    first, second = layer.first.problem, layer.second.problem
    assert first.epilogue == "t = gate8 + bias.bf16[n]; h = t * up8; s[m, n/128] = scale(h); d = h / s"
    assert (first.a_scale, first.b_scale, first.d_dtype, first.rows) == ("1x128", "128x128", "e4m3", rows)
    assert (second.a_scale, second.b_scale, second.d_dtype, second.rows) == ("1x128", "128x128", "bf16", "stored")
    _, *copies, of_first, of_second, _ = LayerAddresses(layer).of(layer.tensors)
    assert (of_first, of_second) == (layer.first.addresses, layer.second.addresses)
    assert copies == [(copy.source.ptr, copy.index.ptr, copy.out.ptr) for copy in layer.copies]
    assert [copy.is_turned for copy in layer.copies] == ([] if rows == "gathered" else [False, True])
    for gemm in (layer.first, layer.second)[rows == "gathered" :]:
        assert gemm.tensors["a_scale"].strides == (1, 8 * tokens), "contiguous along M, as kernels read it fastest"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"w1_scale": None}, "w1_scale is missing and x is e4m3"),
        ({"x_scale": on_gpu((64, 2), "bf16")}, "x_scale is bf16; it must be f32 or ue8m0: pass x_scale.float()"),
        ({"x_scale": on_gpu((64, 2), "ue8m0")}, "w1_scale is f32 and x_scale is ue8m0; .* pass x_scale.float()"),
        ({"w2_scale": on_gpu((16, 2, 1), "ue8m0")}, "w2_scale is ue8m0 and x_scale is f32; .* pass w2_scale.float()"),
        ({"x_scale": on_gpu((64, 1), "f32")}, r"x_scale has shape \(64, 1\); .* it must have shape \(64, 2\)"),
        ({"w1_scale": on_gpu((16, 1, 2), "f32")}, r"w1_scale has shape .* it must have shape \(16, 2, 2\)"),
        ({"w1": on_gpu((16, 192, 256), "e4m3"), "w2": on_gpu((16, 256, 96), "e4m3")}, "F is 96; for e4m3 .* 128"),
        ({"activation": "d = gate8 * up8; d = h"}, "d is assigned twice|'d' is assigned twice"),
        (
            {"w1": on_gpu((16, 256, 256), "e4m3", strides=(1 << 16, 1, 256))},
            "w1 has strides .* its rows must be contig",
        ),
    ],
)
def test_what_e4m3_refuses(changed: dict[str, Any], says: str) -> None:
    tensors = EIGHT_BITS | changed
    with pytest.raises(OperandError, match=says):
        bound(**{name: x for name, x in tensors.items() if x is not None})


def test_scales_of_e4m3_may_be_powers_of_two() -> None:
    shapes = {"x_scale": (64, 2), "w1_scale": (16, 2, 2), "w2_scale": (16, 2, 1)}
    scales = {name: on_gpu(shape, "ue8m0") for name, shape in shapes.items()}
    layer = bound(activation="d = silu(gate_half) * up_half", **EIGHT_BITS | scales)
    first, second = layer.first.problem, layer.second.problem
    assert first.epilogue == "h = silu(gate_half) * up_half; s.ue8m0[m, n/128] = scale(h); d = h / s"
    assert (first.a_scale, first.b_scale, second.a_scale, second.b_scale) == ("1x128e8", "128x128e8") * 2
    assert [layer.pieces[name].dtype for name in ("inner_scale", "copy_scale")] == ["ue8m0", "ue8m0"]


def test_activations_of_e4m3_may_have_any_names() -> None:
    layer = bound({"s": 0.5, "ss": 2.0}, "h = silu(gate8) * s; d = h * up8 * ss", **EIGHT_BITS)
    quantised = "h = silu(gate8) * s; hh = h * up8 * ss; sss[m, n/128] = scale(hh); d = hh / sss"
    assert layer.first.problem.epilogue == quantised
    _, *_, of_first, of_second, _ = LayerAddresses(layer).of(layer.tensors)
    assert (of_first, of_second) == (layer.first.addresses, layer.second.addresses)


def test_both_products_have_the_bits_of_the_call() -> None:
    views = {name: view(x, name) for name, x in TENSORS.items()}
    layer = bind_layer(views, "silu", {}, {"stream": 7, "bits": "invariant"}, on_gpu)
    for gemm in (layer.first, layer.second):
        assert (gemm.options.bits, gemm.stream) == ("invariant", 7)


@pytest.mark.parametrize("is_aligned", [True, False])
def test_launches_take_other_tensors(is_aligned: bool) -> None:
    """The addresses that a first call found by binding are those that later calls look up."""
    tensors = TENSORS | {"b2": on_gpu((16, 256)), "x": on_gpu((64, 256), address=(1 << 46) + (0 if is_aligned else 8))}
    activation, operands = "d = silu(gate8 + g[n]) * (up8 * s)", {"g": on_gpu((16, 96)), "s": 2.0}
    layer = bound(operands, activation, **tensors)
    route, *copies, first, second, combine = LayerAddresses(layer).of(layer.tensors)
    assert (first, second) == (layer.first.addresses, layer.second.addresses)
    assert route == routing.JOB.unpack(route_job(layer.route)[0])[:4]
    assert combine == combining.JOB.unpack(combine_job(layer.combine)[0])[:5]
    assert copies == [(x.source.ptr, x.index.ptr, x.out.ptr) for x in layer.copies]
    assert len(copies) == (0 if is_aligned else 1)


def test_results_overlap_nothing_but_x() -> None:
    assert bound(out=on_gpu((64, 256), address=1 << 46), x=on_gpu((64, 256), address=1 << 46)).copies == ()
    with pytest.raises(OperandError, match="out and w2 overlap in memory"):
        bound(out=on_gpu((64, 256), address=1 << 46), w2=on_gpu((16, 256, 96), address=1 << 46))
    with pytest.raises(OperandError, match="out and x overlap in memory"):
        bound(out=on_gpu((64, 256), address=1 << 46), x=on_gpu((64, 256), address=(1 << 46) + 16))
    aux, text = on_gpu((512, 96), address=1 << 46), "aux[m, n] = gate8; d = silu(gate8) * up8"
    with pytest.raises(OperandError, match="aux and w2 overlap in memory"):
        bound({"aux": aux}, text, w2=on_gpu((16, 256, 96), address=1 << 46))
    with pytest.raises(OperandError, match="w1 has no memory"):
        bound(w1=on_gpu((16, 192, 256), address=0))


@pytest.mark.parametrize("step", [0, -256])
def test_rows_of_one_token_or_in_reverse_are_copied(step: int) -> None:
    layer = bound(x=on_gpu((64, 256), strides=(step, 1)))
    assert (layer.first.problem.rows, len(layer.copies)) == ("stored", 1)


@pytest.mark.parametrize("tokens", [0, 64])
def test_a_layer_without_work_is_bound(tokens: int) -> None:
    layer = bound(
        x=on_gpu((tokens, 256)),
        topk_ids=on_gpu((tokens, 0), "s32", strides=(1, 1)),
        topk_weights=on_gpu((tokens, 0), "f32", strides=(1, 1)),
        out=on_gpu((tokens, 256)),
    )
    assert layer.first.bound.is_empty


def test_interleaved_rows_are_those_of_gate8() -> None:
    weights = np.arange(3 * 32 * 2).reshape(3, 32, 2)
    order = [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
    assert np.array_equal(gemmill.interleaved(weights), weights[:, order])
    assert np.array_equal(gemmill.interleaved(weights[..., 0]), weights[:, order, 0])
    with pytest.raises(OperandError, match=r"gate_up has shape \(3, 24, 2\)"):
        gemmill.interleaved(weights[:, :24])


def carried_out(host: Host, layer: Layer, activation: Callable[[Any], Any], bias: Any) -> None:
    """Carry out the launches of a layer; PTX as it is, products by NumPy."""

    def combine(step: BoundCombine) -> None:
        job, ctas = combine_job(step)
        Kernel(emit_combining(step.kind)).launch(host.memory, job, ctas, combining.THREADS)

    def multiply(gemm: GemmCall, finish: Callable[[Any, int], Any]) -> None:
        a, b, offsets, out = (host.bits(gemm.tensors[name]) for name in ("a", "b", "offsets", "out"))
        a = a[host.bits(gemm.tensors["rows"])] if "rows" in gemm.tensors else a
        begin = 0
        for expert, end in enumerate(offsets.view(np.int32).tolist()):
            sums = as_f32(a[begin:end], "bf16") @ as_f32(b[expert], "bf16")
            out[begin:end] = rounded(finish(sums, expert), "bf16")
            begin = end

    job, ctas = route_job(layer.route)
    Kernel(routing.emit_routing(*layer.route.kind)).launch(host.memory, job, ctas, routing.THREADS)
    for copy in layer.copies:
        job, ctas = gather_job(copy)
        Kernel(emit_gathering_rows(copy.width)).launch(host.memory, job, ctas, gathering.THREADS)
    multiply(layer.first, lambda sums, _: activation(sums))
    multiply(layer.second, lambda sums, expert: sums + bias[expert])
    combine(layer.combine)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.integers(0, 3), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 99))
def test_launches_give_the_sums_of_each_token(
    tokens: int, slots: int, experts: int, gated: bool, is_aligned: bool, seed: int
) -> None:
    host, hidden, inner = Host(seed), 24, 16
    shapes = {
        "x": (tokens, hidden),
        "w1": (experts, inner * (2 if gated else 1), hidden),
        "w2": (experts, hidden, inner),
        "b2": (experts, hidden),
        "topk_weights": (tokens, slots),
    }
    tensors = {name: host.tensor("f32" if name == "topk_weights" else "bf16", shape) for name, shape in shapes.items()}
    tensors["x"] = host.tensor("bf16", (tokens, hidden), 0, 0 if is_aligned else 4)
    tensors |= {"topk_ids": host.tensor("s32", (tokens, slots)), "out": host.tensor("f32", (tokens, hidden))}
    ids = host.generator.integers(-1, experts + 1, (tokens, slots)).astype(np.int32)
    tensors["topk_ids"][0][...] = ids.view(np.uint32)
    x, w1, w2, b2, weights = (as_f32(tensors[name][0], tensors[name][1].dtype) for name in shapes)

    def activation(sums: Any) -> Any:
        if not gated:
            return np.maximum(sums, 0)
        runs = sums.reshape(*sums.shape[:-1], inner // 8, 2, 8)
        return (np.maximum(runs[..., 0, :], 0) * runs[..., 1, :]).reshape(*sums.shape[:-1], inner)

    views = {name: x for name, (_, x) in tensors.items()}
    text = "relu" if gated else "d = relu(acc)"
    layer = bind_layer(views, text, {}, {"stream": 0}, lambda shape, dtype: host.tensor("s32", (shape[0] // 4,))[1])
    assert ("rows" in layer.first.tensors, not layer.copies) == (is_aligned, is_aligned)
    carried_out(host, layer, activation, b2)
    wanted, terms = np.zeros((tokens, hidden)), np.zeros((tokens, hidden))
    for token, slot in np.argwhere((ids >= 0) & (ids < experts)):
        expert, weight = ids[token, slot], weights[token, slot]
        inner_row = activation(x[token].astype(float) @ w1[expert].T)
        wanted[token] += weight * (inner_row @ w2[expert].T + b2[expert])
        terms[token] += abs(weight) * (abs(inner_row) @ abs(w2[expert]).T + abs(b2[expert]))
    assert (abs(as_f32(tensors["out"][0], "f32") - wanted) <= 2**-7 * terms).all(), "two roundings to bf16"
