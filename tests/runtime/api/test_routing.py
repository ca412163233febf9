"""``route`` and ``combine``: what their operands may be, and what each kernel is told. Nothing needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.exporter import on_gpu

import gemmill
from gemmill.emitters import combining
from gemmill.emitters.combining import Combination
from gemmill.library.errors import OperandError
from gemmill.runtime.launch.routing import combine_job
from gemmill.runtime.operands.routing import BoundCombine, bind_combine, bind_route
from gemmill.runtime.operands.tensors import TensorView, view

IDS = on_gpu((64, 8), "s32")
ROUTING = gemmill.Routing(on_gpu((16,), "s32"), on_gpu((512,), "s32"), on_gpu((64, 8), "s32"))
Y, PLACES, OUT = on_gpu((512, 256)), on_gpu((64, 8), "s32"), on_gpu((64, 256))
WEIGHTS = on_gpu((64, 8), "f32")
PLACE = 1 << 45


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"topk_ids": on_gpu((64,), "s32")}, r"topk_ids has shape \(64,\); it must be \(tokens, slots of a token\)"),
        ({"topk_ids": on_gpu((64, 8), "f32")}, "topk_ids is f32; it must be int32"),
        ({"topk_ids": on_gpu((64, 8), "s32", strides=(1, 64))}, r"topk_ids has strides \(1, 64\) .* contiguous"),
        ({"topk_ids": on_gpu((64, 8), "s32", strides=(16, 2))}, r"topk_ids has strides \(16, 2\) .* contiguous"),
        ({"topk_ids": on_gpu((64, 1), "s32", strides=(2, 1))}, r"topk_ids has strides \(2, 1\) .* contiguous"),
        ({"topk_ids": on_gpu((1 << 28, 8), "s32")}, r"tokens times slots must be below 2\^31"),
        ({"experts": 0}, r"experts is 0; it must be a whole number from 1 to 2\^31 - 1"),
        ({"experts": True}, "experts is True"),
        ({"experts": 15}, r"offsets has shape \(16,\); with 15 experts it must have shape \(15,\)"),
        ({"rows": on_gpu((511,), "s32")}, r"rows has shape \(511,\); .* it must have shape \(512,\)"),
        ({"rows": on_gpu((512,), "bf16")}, "rows is bf16; it must be int32"),
        ({"places": on_gpu((512,), "s32")}, r"places has shape \(512,\); .* it must have shape \(64, 8\)"),
        ({"places": on_gpu((64, 8), "s32", strides=(9, 1))}, r"places has strides \(9, 1\); it must be contiguous"),
        ({"places": on_gpu((64, 8), "s32", gpu=1)}, "places is on GPU 1 and topk_ids is on GPU 0"),
        ({"offsets": on_gpu((16,), "s32", read_only=True)}, "offsets is read-only"),
        ({"rows": on_gpu((512,), "s32", address=0)}, "rows has no memory"),
        ({"rows": on_gpu((512,), "s32", address=PLACE), "topk_ids": on_gpu((64, 8), "s32", address=PLACE)}, "overlap"),
    ],
)
def test_what_route_refuses(changed: dict[str, Any], says: str) -> None:
    out = ROUTING._replace(**{name: x for name, x in changed.items() if name in ROUTING._fields})
    with pytest.raises(OperandError, match=says):
        gemmill.route(changed.get("topk_ids", IDS), changed.get("experts", 16), out=out)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"y": on_gpu((512,))}, r"y has shape \(512,\); it must be \(rows, N\)"),
        ({"y": on_gpu((512, 256), "s8")}, "y is s8; it must be bf16, f16 or f32"),
        ({"y": on_gpu((512, 256), strides=(512, 2))}, "y has strides .* its rows must be contiguous"),
        ({"places": on_gpu((64, 8), "f32")}, "places is f32; it must be int32"),
        ({"places": on_gpu((64, 8, 1), "s32")}, r"places has shape \(64, 8, 1\)"),
        ({"weights": on_gpu((64, 7), "f32")}, r"weights has shape \(64, 7\); with places of shape \(64, 8\)"),
        ({"weights": on_gpu((64, 8), "e4m3")}, "weights is e4m3"),
        ({"add": on_gpu((64, 128))}, r"add has shape \(64, 128\); .* it must have shape \(64, 256\)"),
        ({"out": on_gpu((63, 256))}, r"out has shape \(63, 256\)"),
        ({"out": on_gpu((64, 256), strides=(255, 1))}, "its elements overlap"),
        ({"out": on_gpu((64, 256), address=PLACE), "y": on_gpu((512, 256), address=PLACE + 512)}, "out and y overlap"),
        ({"out": on_gpu((64, 256), "f32", address=PLACE), "add": on_gpu((64, 256), address=PLACE)}, "out and add"),
        ({"out": None}, "out is missing, and gemmill cannot allocate bf16 for a Exporter"),
        ({"weights": on_gpu((64, 8), "f32", gpu=1)}, "weights is on GPU 1"),
    ],
)
def test_what_combine_refuses(changed: dict[str, Any], says: str) -> None:
    arguments = {"y": Y, "places": PLACES, "weights": WEIGHTS, "out": OUT} | changed
    with pytest.raises(OperandError, match=says):
        gemmill.combine(arguments.pop("y"), arguments.pop("places"), arguments.pop("weights"), **arguments)


def views(**tensors: Any) -> dict[str, TensorView]:
    return {name: view(x, name) for name, x in tensors.items()}


def combine_of(**changed: Any) -> BoundCombine:
    tensors = {"weights": None, "add": None} | views(**{"y": Y, "places": PLACES, "out": OUT} | changed)
    return bind_combine(**tensors)  # type: ignore[arg-type]


def test_sums_may_start_from_out() -> None:
    assert combine_of(add=OUT).add is not None


@pytest.mark.parametrize(
    ("changed", "elements"),
    [
        ({}, 8),
        ({"y": on_gpu((512, 256), "f32")}, 4),
        ({"y": on_gpu((512, 252), strides=(256, 1)), "out": on_gpu((64, 252), strides=(256, 1))}, 4),
        ({"y": on_gpu((512, 255), strides=(256, 1)), "out": on_gpu((64, 255), strides=(256, 1))}, 1),
        ({"y": on_gpu((512, 256), address=PLACE + 4)}, 2),
        ({"out": on_gpu((64, 256), strides=(260, 1))}, 4),
        ({"add": on_gpu((64, 256), "f32", address=PLACE + 4)}, 1),
        ({"add": on_gpu((64, 256), "f32", address=PLACE + 8)}, 2),
        ({"out": on_gpu((64, 256), "f32", strides=(260, 1))}, 8),
    ],
)
def test_vectors_are_the_widest_that_all_rows_allow(changed: dict[str, Any], elements: int) -> None:
    assert combine_of(**changed).kind.elements == elements


def test_the_kernel_of_a_sum_has_its_dtypes_and_slots() -> None:
    bound = combine_of(weights=on_gpu((64, 3), "f32"), add=on_gpu((64, 256), "f32"), places=on_gpu((64, 3), "s32"))
    assert bound.kind == Combination("bf16", "bf16", "f32", "f32", 3, 8)


def test_the_job_of_a_sum_is_in_bytes() -> None:
    weights, add = on_gpu((64, 8), "f32", strides=(1, 64)), on_gpu((64, 256), "f32", strides=(-256, 1))
    bound = combine_of(weights=weights, add=add)
    job = combining.JOB.unpack(combine_job(bound)[0])
    assert job[:5] == tuple(x.ptr for x in (bound.y, bound.places, bound.weights, bound.add, bound.out) if x)
    assert job[5:] == (512, 32, 4, 4, 256, -1024, 512, 512, 8, 32, 1)


@pytest.mark.parametrize(("strides", "step"), [((8, 1), 4), ((16, 2), 8)])
def test_ids_of_64_bits_are_two_words_apart(strides: tuple[int, int], step: int) -> None:
    tensors = views(**ROUTING._asdict())
    assert bind_route(view(on_gpu((64, 8), "s32", strides=strides), "topk_ids"), 16, **tensors).kind == (step, 1)


def test_tokens_may_have_no_slots() -> None:
    """Strides are as PyTorch gives them."""
    tensors = {"rows": on_gpu((0,), "s32"), "places": on_gpu((64, 0), "s32", strides=(1, 1))}
    bound = bind_route(
        view(on_gpu((64, 0), "s32", strides=(1, 1)), "topk_ids"), 16, **views(**ROUTING._asdict() | tensors)
    )
    assert bound.count == 0


def test_what_neither_takes_is_refused() -> None:
    with pytest.raises(TypeError, match="bogus"):
        gemmill.route(IDS, 16, bogus=1)  # type: ignore[call-arg]
