"""Scales of matmul by their shapes: which are of the epilogue, which of blocks and groups, and what is refused."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from tests.cases.plain import read as read_arguments_of

from gemmill.library.config.names import parse_name
from gemmill.library.errors import OperandError
from gemmill.library.models.quantization import SCHEMES, QuantizationName
from gemmill.library.problem import GemmProblem
from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.registry import Registry

TYPESTR = {"f32": "<f4", "f16": "<f2", "s8": "|i1", "s32": "<i4"}


class Array:
    """A tensor on GPU 0 that nobody reads."""

    def __init__(self, *shape: int, dtype: str = "f32", strides: tuple[int, ...] | None = None) -> None:
        size = int(TYPESTR[dtype][-1])
        steps = strides or tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        in_bytes = tuple(size * step for step in steps)
        interface = {"shape": shape, "strides": in_bytes, "typestr": TYPESTR[dtype], "data": (0, False), "version": 3}
        self.__cuda_array_interface__ = interface


def bytes_of(*shape: int, strides: tuple[int, ...] | None = None) -> Array:
    return Array(*shape, dtype="s8", strides=strides)


def read(a: Any = None, b: Any = None, out: Any = None, **given: Any) -> GemmCall:
    """A call as it is read: of e4m3, (64, 512) by (512, 256), where nothing else is said."""
    operands = a or bytes_of(64, 512), b or bytes_of(512, 256, strides=(1, 512))
    given = {"a_dtype": "e4m3", "b_dtype": "e4m3"} | given
    return read_arguments_of(matmul, *operands, out=out or Array(64, 256, dtype="f16"), **given)


ROWS, COLUMNS = Array(64, 1), Array(1, 256)
BLOCKS = {"a_scale": Array(64, 4), "b_scale": Array(4, 2)}


@pytest.mark.parametrize(
    ("given", "epilogue"),
    [
        ({"a_scale": ROWS, "b_scale": COLUMNS}, "d = alpha * acc * a_scale[m] * b_scale[n]"),
        ({"a_scale": ROWS, "b_scale": Array(256)}, "d = alpha * acc * a_scale[m] * b_scale[n]"),
        ({"a_scale": ROWS}, "d = alpha * acc * a_scale[m]"),
        ({"b_scale": COLUMNS}, "d = alpha * acc * b_scale[n]"),
        ({"a_scale": Array(), "b_scale": Array(1, 1)}, "d = alpha * acc * a_scale * b_scale"),
        ({"a_scale": Array(1), "b_scale": COLUMNS}, "d = alpha * acc * a_scale * b_scale[n]"),
        ({"a_scale": Array(64, 1, dtype="f16")}, "d = alpha * acc * a_scale.f16[m]"),
        ({"a_scale": Array(64, 1, strides=(7, 1))}, "d = alpha * acc * a_scale[m, n]"),
        ({"a_scale": Array(64, 1, strides=(0, 1))}, "d = alpha * acc * a_scale"),
        (
            {"a_scale": ROWS, "c": Array(64, 256, dtype="f16"), "beta": 2.0},
            "d = alpha * acc * a_scale[m] + beta * c",
        ),
        ({"a_scale": ROWS, "b_scale": 2.0}, "d = alpha * acc * a_scale[m]"),
        (
            {"a_scale": ROWS, "b_scale": 2.0, "epilogue": "d = relu(acc) + x[n]", "x": Array(256)},
            "d = relu(acc * a_scale[m] * b_scale) + x[n]",
        ),
        (  # which the expression says itself, and then they may be vectors too
            {"a_scale": Array(64), "b_scale": COLUMNS, "epilogue": "d = relu(acc * b_scale[n]) * a_scale[m]"},
            "d = relu(acc * b_scale[n]) * a_scale[m]",
        ),
        ({"a_scale": 0.5, "b_scale": 4}, "linear"),
        (BLOCKS, "linear"),
        (BLOCKS | {"epilogue": "d = relu(acc)"}, "d = relu(acc)"),
    ],
)
def test_scales_of_rows_columns_and_operands_are_of_the_epilogue(given: dict[str, Any], epilogue: str) -> None:
    given = given | given.get("operands", {})
    given.pop("operands", None)
    call = read(**given)
    assert call.problem.epilogue == epilogue
    by_blocks = given["a_scale" if "a_scale" in given else "b_scale"] in BLOCKS.values()
    assert call.problem.a_scale == ("1x128" if by_blocks else "none")
    assert [x.name for x in call.bound.arguments] == [x for x in call.places[-len(call.bound.arguments) or 99 :] if x]


@pytest.mark.parametrize(
    ("scheme", "given"),
    [("fp8", {"a_scale": Array(1), "b_scale": Array(1)}), ("fp8-rows", {"a_scale": ROWS, "b_scale": COLUMNS})],
)
def test_the_problems_of_models_have_the_epilogues_of_such_calls(
    scheme: QuantizationName, given: dict[str, Any]
) -> None:
    assert SCHEMES[scheme]["epilogue"] == read(**given).problem.epilogue


@pytest.mark.parametrize(("dtype", "scale"), [("f32", "1x128"), ("f16", "none")])
def test_scales_of_one_block_along_k_are_of_blocks_in_types_that_those_have(dtype: str, scale: str) -> None:
    """By their shapes they might as well be of rows."""
    a, b, out = bytes_of(64, 128), bytes_of(128, 128), Array(64, 128, dtype="f16")
    call = read(a, b, out=out, a_scale=Array(64, 1, dtype=dtype), b_scale=Array(1, 1, dtype=dtype))
    assert call.problem.a_scale == scale


def test_scales_of_the_host_are_factors_without_an_epilogue() -> None:
    assert read(a_scale=0.5, b_scale=4, alpha=3.0).options.alpha == 6.0
    assert read(a_scale=0.5).signature != read(a_scale=0.25).signature


def test_calls_whose_scales_differ_in_kind_differ() -> None:
    a, out = bytes_of(64, 64, 512), Array(64, 64, 256, dtype="f16")
    of_rows = read(a, out=out, a_scale=Array(64, 1)).signature
    assert of_rows != read(a, out=out, a_scale=Array(64, 1, 1)).signature
    assert of_rows == read(a, out=out, a_scale=Array(64, 1)).signature


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"a_scale": Array(64)},
            r"a_scale has shape \(64,\); .*\(64, 1\) with one value for each row.* Pass a_scale\.unsqueeze",
        ),
        ({"a_scale": Array(1, 64)}, r"Pass a_scale\.mT"),
        ({"b_scale": Array(256, 1)}, r"one value, or \(1, 256\) with one value for each column\. Pass b_scale\.mT"),
        ({"a_scale": Array(64, 4)}, r"shape of block scales, which need b_scale of shape \(4, 2\) too"),
        (
            {"a_scale": ROWS, "b_scale": Array(4, 2)},
            r"b_scale has shape.* need a_scale of shape \(64, 4\) too",
        ),
        (
            {"a_scale": Array(64, 3), "b_scale": Array(4, 2)},
            r"Block scales have shapes \(64, 4\) for a_scale and \(4, 2\) for b_scale",
        ),
        ({"a_scale": Array(3, 64, 1)}, "does not broadcast"),
        ({"a_scale": Array(64, 1, dtype="s32")}, "a_scale is s32; it must be one of"),
        ({"a_scale": Array(64, 4, dtype="f16"), "b_scale": Array(4, 2)}, r"f32 or ue8m0: pass a_scale\.float"),
        ({"a_scale": True}, "a_scale is a builtins.bool"),
        (
            {"b_scale": COLUMNS, "epilogue": "d = silu(gate) * up", "out": Array(64, 128, dtype="f16")},
            r"pairs columns: .*gate \* g\[n\]",
        ),
        ({"a_scale": 1e39, "epilogue": "d = relu(acc)"}, "a_scale is 1e[+]39; it must fit in a float32"),
        ({"epilogue": "d = acc * a_scale[m]"}, "a_scale is missing"),
    ],
)
def test_what_scales_nothing_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        _ = read(**given).problem


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"b_scale": Array(4, 256, dtype="f16")}, ("linear", "1x128")),
        ({"b_scale": Array(1, 256)}, ("d = alpha * acc * b_scale[m]", "none")),  # kernels solve the transpose
        ({"b_scale": Array()}, ("d = alpha * acc * b_scale", "none")),
        ({"a_scale": Array(64, 1), "b_scale": Array(8, 256, dtype="f16")}, ("d = alpha * acc * a_scale[n]", "1x64")),
    ],
)
def test_narrow_weights_have_scales_of_groups_or_of_columns(given: dict[str, Any], problem: tuple[str, str]) -> None:
    found = read(Array(64, 512, dtype="f16"), a_dtype=None, b_dtype="s8", **given).problem
    assert (found.epilogue, found.a_scale) == problem


@pytest.mark.parametrize(
    ("b_scale", "epilogue"),
    [
        (Array(4, 1, 256), "d = alpha * acc * a_scale[m] * b_scale[n]"),
        (Array(4, 1, 1), "d = alpha * acc * a_scale[m] * b_scale[batch]"),
        (Array(1, 256), "d = alpha * acc * a_scale[m] * b_scale[n]"),
    ],
)
def test_groups_have_scales_of_their_own(b_scale: Array, epilogue: str) -> None:
    call = read_arguments_of(
        grouped_matmul,
        Array(300, 64, dtype="f16"),
        Array(4, 64, 256, dtype="f16"),
        offsets=Array(4, dtype="s32"),
        out=Array(300, 256, dtype="f16"),
        a_scale=Array(300, 1),
        b_scale=b_scale,
    )
    assert (call.problem.epilogue, call.problem.batching) == (epilogue, "grouped")


def test_a_row_scaled_problem_is_written_as_its_epilogue() -> None:
    problem = read(a_scale=ROWS, b_scale=COLUMNS).problem
    assert str(problem) == "64x256x512 e4m3 tn d=f16 epilogue='d = alpha * acc * a_scale[m] * b_scale[n]'"
    assert GemmProblem.from_text(str(problem)) == problem


@pytest.mark.slow
def test_kernels_of_row_scaled_problems_compile() -> None:
    registry = Registry(gpu="NVIDIA H200")
    for epilogue in (
        "d = alpha * acc * a_scale[m] * b_scale[n]",
        "d = alpha * acc * a_scale.ue8m0 * b_scale.ue8m0[m, n]",
        "d = alpha * acc * a_scale.ue8m0[m] * b_scale.ue8m0[n]",
    ):
        choice = registry.select(GemmProblem(512, 4096, 4096, a="e4m3", epilogue=epilogue))
        assert registry.get(parse_name(choice.name)).cubin
