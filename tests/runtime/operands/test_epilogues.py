"""Operands of epilogues bound to memory, and what is refused."""

from __future__ import annotations

import inspect
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.grammar import RESERVED
from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import OperandError
from gemmill.library.families.shared_rules import D_DTYPES
from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.api.matmul import matmul, plan
from gemmill.runtime.api.read import read_call
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.operands.binding import bind
from gemmill.runtime.operands.bound_arguments import bind_arguments, staged
from gemmill.runtime.operands.bound_arguments import stacked as stacked_values
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import EpilogueArguments, read_epilogue, read_values, typed
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.tensors import TensorView


def tensor(*shape: int, dtype: str = "f32", strides: tuple[int, ...] | None = None, **fields: Any) -> TensorView:
    steps = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return TensorView(1 << 40, shape, strides or steps, dtype, 0, **fields)  # type: ignore[arg-type]


def bound(text: str, out: TensorView, **values: TensorView | float) -> dict[str, tuple[int, ...]]:
    return {b.name: b.strides for b in bind_arguments(parse(text), values, out, True, True)}


def test_no_argument_of_the_api_can_name_an_operand() -> None:
    parameters = (
        p for f in (matmul, grouped_matmul, plan, Plan.rebind) for p in inspect.signature(f).parameters.values()
    )
    named = {parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD}
    assert named - {"self"} <= RESERVED


def test_strides_follow_shapes() -> None:
    text = "d = acc * s * row[m] * per[batch] + bias[n] + r[m, n]; top[n] = max(acc)"
    strides = bound(
        text,
        tensor(3, 8, 16),
        s=2.0,
        row=tensor(3, 8),
        per=tensor(3),
        bias=tensor(16),
        r=tensor(8, 1),
        top=tensor(3, 16),
    )
    assert strides == {"s": (), "row": (8,), "per": (1,), "bias": (0,), "r": (1, 0, 0), "top": (16,)}
    one = bind_arguments(parse("d = acc; top = max(acc)"), {"top": tensor()}, tensor(8, 16), True, True)
    assert one[0].reset == (0xFF800000, 1)


def test_groups_that_share_d_take_the_place_of_its_batch() -> None:
    epilogue, d = parse("d = acc * s[m] * w[batch] + bias[n] + r[m, n]; top[n] = max(acc)"), tensor(8, 16)
    values = {"s": tensor(8), "w": tensor(3), "bias": tensor(3, 16), "r": tensor(8, 16), "top": tensor(3, 16)}
    bound = bind_arguments(epilogue, values, d, True, True, groups=3)
    assert {b.name: b.strides for b in bound} == {
        "s": (0,),
        "w": (1,),
        "bias": (16,),
        "r": (16, 1, 0),
        "top": (16,),
    }
    for name, value in {"s": tensor(3, 8), "r": tensor(3, 8, 16), "bias": tensor(2, 16), "top": tensor(8, 16)}.items():
        with pytest.raises(OperandError, match=f"^{name} has shape|^{name} .* does not broadcast"):
            bind_arguments(epilogue, values | {name: value}, d, True, True, groups=3)


SCALED, GATED = "h = acc; s[m, n/128] = scale(h); d = h / s", "d = gate * up"


def test_scales_of_blocks_have_any_strides_and_the_index_of_groups_that_share_d() -> None:
    d = tensor(3, 8, 256, dtype="e4m3")
    contiguous_along_m = tensor(3, 8, 2, strides=(16, 1, 8))
    assert bound(SCALED, d, s=contiguous_along_m) == {"s": (1, 8, 16)}
    (s,) = bind_arguments(parse(SCALED), {"s": tensor(3, 8, 2)}, d, True, True)
    assert (s.strides, s.major, s.reset) == ((2, 1, 16), "any", None)
    shared = bind_arguments(parse(SCALED), {"s": tensor(8, 2)}, tensor(8, 256), True, True, groups=3)
    assert shared[0].strides == (2, 1, 0)
    typed_epilogue = typed(parse(SCALED), {"s": tensor(3, 8, 2, dtype="ue8m0")})
    assert str(typed_epilogue) == SCALED.replace("s[", "s.ue8m0[")


@pytest.mark.parametrize(
    ("strides", "stacked"), [((16, 2, 1), {"s": (2, 1, 0)}), ((1, 6, 3), None), ((32, 2, 1), None)]
)
def test_scales_of_a_batch_that_follow_each_other_are_those_of_one_matrix(strides: Any, stacked: Any) -> None:
    d = tensor(3, 8, 256, dtype="e4m3")
    found = stacked_values(parse(SCALED), {"s": tensor(3, 8, 2, strides=strides)}, d, True)
    assert (found and bound(SCALED, found[1], **found[0])) == stacked


@pytest.mark.parametrize(
    ("text", "d", "s", "says"),
    [(SCALED, tensor(8, 256, dtype="e4m3"), {"s": tensor(8, 2)}, "scales"), (GATED, tensor(8, 128), {}, "pairs")],
)
def test_what_has_no_transpose_is_refused_where_b_is_upconverted(text: str, d: Any, s: Any, says: str) -> None:
    a, b = tensor(8, 128, dtype="bf16"), tensor(128, 256, dtype="s8")
    call = read_call({"a": a, "b": b, "out": d, "epilogue": text, "stream": 0, **s})
    with pytest.raises(OperandError, match=f"{says} .* not supported where b is upconverted"):
        bind(call)


@pytest.mark.parametrize(
    ("value", "operand", "output"),
    [
        (tensor(3, 8, 16), "n", "n"),
        (tensor(8, 16), "n", None),  # one for all of the batch; as an output it has not D's shape
        (tensor(3, 8, 16, dtype="bf16"), "n", "n"),
        (tensor(3, 8, 16, strides=(192, 24, 1), dtype="bf16"), "n", "n"),
        (tensor(3, 8, 16, strides=(160, 20, 1), dtype="bf16"), "any", "any"),  # rows of 40 bytes
        (tensor(3, 8, 16, strides=(128, 1, 8)), "m", "m"),
        (tensor(3, 8, 16, strides=(256, 32, 2)), "any", "any"),
        (tensor(3, 1, 16), "any", None),
        (tensor(3, 8, 1), "any", None),
        (tensor(3, 8, 16, strides=(-128, 16, 1)), "any", "any"),
        (replace(tensor(3, 8, 16), ptr=4104), "any", "any"),
    ],
)
def test_matrices_are_moved_by_tma_where_it_can(value: TensorView, operand: str, output: str | None) -> None:
    (r,) = bind_arguments(parse("d = acc + r[m, n]"), {"r": value}, tensor(3, 8, 16), True, True)
    assert r.major == operand
    if output is not None:
        (x,) = bind_arguments(parse("d = acc; x = acc"), {"x": value}, tensor(3, 8, 16), True, True)
        assert x.major == output


def test_an_output_of_tma_ends_with_whole_16_bytes() -> None:
    epilogue = parse("d = acc + r[m, n]; x = acc")
    values = {name: tensor(8, 18, strides=(20, 1)) for name in ("r", "x")}
    bound = bind_arguments(epilogue, values, tensor(8, 18), True, True)
    assert {x.name: x.major for x in bound} == {"r": "n", "x": "any"}
    assert str(staged(epilogue, bound)) == "d = acc + r.n[m, n]; x[m, n] = acc"
    with pytest.raises(OperandError, match=r"x is n-major in the epilogue, .* leave out the major"):
        staged(parse("d = acc + r[m, n]; x.n = acc"), bound)


@pytest.mark.parametrize(
    ("text", "values", "says"),
    [
        ("d = acc + x[n]", {"x": tensor(15)}, r"x has shape \(15,\); x\[n\] must be \(16,\) or \(3, 16\)"),
        ("d = acc + x[n]", {"x": tensor(2, 16)}, "does not broadcast"),
        ("d = acc + x[n]", {"x": tensor(16, strides=(2,))}, "x has stride 2; it must be contiguous"),
        ("d = acc + x", {"x": tensor(2)}, "without an index it must have one element"),
        ("d = acc + x[m, n]", {"x": tensor(9, 16)}, "does not broadcast"),
        ("d = acc; x = acc", {"x": tensor(8, 16)}, "it must have the shape of out"),
        ("d = acc; x = acc", {"x": tensor(3, 8, 16, strides=(0, 16, 1))}, "its elements overlap"),
        ("d = acc; x = acc", {"x": tensor(3, 8, 16, strides=(128, 1, 1))}, "^x has strides .* its elements overlap"),
        ("d = acc; x[m] = sum(acc)", {"x": tensor(3, 8, strides=(16, 1))}, "must be contiguous"),
        ("d = acc; x[m] = sum(acc)", {"x": tensor(3, 8, writable=False)}, "x is read-only"),
        (SCALED, {"s": tensor(3, 8, 16)}, r"s has shape .*; s\[m, n/128\] must be \(3, 8, 0\)"),
        ("d = acc + x[n]", {"x": TensorView(0, (16,), (1,), "f32", 1)}, "x is on GPU 1 and out is on GPU 0"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, values: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        bound(text, tensor(3, 8, 16), **values)


class OnGpu:
    """Host memory that claims to be on GPU 0; what is refused is never read."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **_: object) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@pytest.mark.parametrize("call", [matmul, plan])
def test_outputs_in_the_same_memory_are_refused(call: Any) -> None:
    a, b = OnGpu(np.zeros((8, 8), np.float16)), OnGpu(np.zeros((8, 16), np.float16))
    memory = np.zeros((24, 32), np.float32)
    out, below, free = memory[:8, :16], memory[7:15, 15:31], memory[16:, :16]
    for x, y, says in ((below, free, "out and x"), (free, out, "out and y"), (free, free, "x and y")):
        with pytest.raises(OperandError, match=f"^{says} overlap in memory .* both are written"):
            call(a, b, out=OnGpu(out), epilogue="d = acc; x = acc; y = acc", x=OnGpu(x), y=OnGpu(y))


def test_what_shares_memory() -> None:
    def refused(x: TensorView, y: TensorView) -> bool:
        passed = EpilogueArguments(parse("d = acc; y = acc"), {"y": y}, None)
        call = GemmCall({"a": TensorView(1 << 41, (8, 8), (8, 1), "f32", 0), "out": x}, arguments=passed)
        try:
            MemoryCheck.of(call)(call.addresses)
        except OperandError:
            return True
        return False

    def at(elements: int, *shape: int, **fields: Any) -> TensorView:
        x = tensor(*shape, **fields)
        return replace(x, ptr=x.ptr + 4 * elements)

    left = tensor(8, 16, strides=(32, 1))
    cases = [
        (at(128, 8, 16), tensor(8, 16), False),  # end to end
        (at(127, 8, 16), tensor(8, 16), True),
        (at(16, 8, 16, strides=(32, 1)), left, False),  # columns of one matrix
        (at(15, 8, 16, strides=(32, 1)), left, True),
        (at(1, 8, 16, strides=(32, 2)), tensor(8, 16, strides=(32, 2)), False),  # every other column
        (at(224, 8, 16, strides=(-32, 1)), left, True),  # its rows from the last to the first
        (at(240, 8, 16, strides=(-32, 1)), left, False),
        (at(20, 4), left, False),  # between two rows
        (at(33, 4), left, True),
        (tensor(0, 16), tensor(8, 16), False),
    ]
    for x, y, wanted in cases:
        assert refused(x, y) == refused(y, x) == wanted, (x, y)


def test_types_come_from_tensors_unless_named() -> None:
    epilogue = parse("d = acc + x[n] + y.bf16[n]; top = max(d)")
    values = {"x": tensor(4, dtype="f16"), "y": tensor(4, dtype="bf16"), "top": tensor(1)}
    assert str(typed(epilogue, values)) == "d = acc + x.f16[n] + y.bf16[n]; top = max(d)"
    with pytest.raises(OperandError, match=r"y is f32, but the epilogue says y\.bf16"):
        typed(epilogue, {**values, "y": tensor(4)})
    with pytest.raises(OperandError, match="top is bf16; it must be one of f32"):
        typed(epilogue, {**values, "top": tensor(1, dtype="bf16")})
    scaled = parse("d = acc * a_scale[m]")
    with pytest.raises(OperandError, match=r"a_scale is e4m3; it must be one of f32, bf16, f16, ue8m0: pass"):
        typed(scaled, {"a_scale": tensor(4, dtype="e4m3")})


def test_a_number_for_an_integer_fits_it() -> None:
    epilogue = parse("d = acc * s.s8")
    assert typed(epilogue, {"s": -128.0}) == epilogue
    for value in (2.5, 128.0, float("inf")):
        with pytest.raises(OperandError, match=f"s is {value}, but .* s.s8: pass a whole number from -128 to 127"):
            typed(epilogue, {"s": value})


@pytest.mark.parametrize("dtype", sorted({dtype for dtypes in D_DTYPES.values() for dtype in dtypes}))
def test_an_operand_has_any_type_of_d(dtype: DTypeName) -> None:
    named = "" if dtype == "f32" else f".{dtype}"
    assert str(typed(parse("d = acc + bias[n]"), {"bias": tensor(4, dtype=dtype)})) == f"d = acc + bias{named}[n]"
    assert str(read_epilogue(f"d = acc + bias.{dtype}[n]")) == f"d = acc + bias{named}[n]"


def test_powers_of_two_are_read_and_not_written() -> None:
    scales = {"x": tensor(8, 16, dtype="ue8m0")}
    epilogue = typed(parse("d = acc * x[m, n]"), scales)
    assert str(staged(epilogue, bind_arguments(epilogue, scales, tensor(8, 16), True, True))) == (
        "d = acc * x.ue8m0[m, n]"  # which TMA could move, but not to where a kernel reads it
    )
    with pytest.raises(OperandError, match=r"x is ue8m0; it must be one of f32, bf16, f16: pass"):
        typed(parse("d = acc; x = acc"), scales)
    for text in ("d = acc; x.ue8m0 = acc", "d = acc * x.ue8m0.n[m, n]"):
        with pytest.raises(OperandError, match=r"x' is ue8m0|x is ue8m0"):
            read_epilogue(text)


def test_values_are_missed_misnamed_or_too_large() -> None:
    epilogue = parse("d = acc * scale")
    assert read_values(epilogue, {"scale": 2}, 0) == {"scale": 2.0}
    with pytest.raises(OperandError, match="scale is missing"):
        read_values(epilogue, {}, 0)
    with pytest.raises(OperandError, match="did you mean scale"):
        read_values(epilogue, {"scales": 2}, 0)
    with pytest.raises(OperandError, match=r"at most 3\.403e"):
        read_values(epilogue, {"scale": 1e39}, 0)
    with pytest.raises(OperandError, match=r"unknown function 'rulu'(.|\n)*\n    +\^"):
        read_epilogue("d = rulu(acc)")
