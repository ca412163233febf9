"""Narrow operands: bytes read as what they hold, groups of scales, and the transposed problem that kernels solve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.cases.plain import bound

from gemmill.emitters.emit import launch_spec
from gemmill.library.config.names import parse_name
from gemmill.library.epilogues.parse import parse, spelling
from gemmill.library.epilogues.tree import transposed
from gemmill.library.errors import OperandError
from gemmill.library.legality.rules import legal
from gemmill.runtime.launch.parameters import scalars
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.operands.scaling import scaled_epilogue
from gemmill.runtime.operands.tensors import TensorView, unpacked
from gemmill.runtime.select.kernels.faults import faults, is_swapped


def tensor(dtype: Any, *shape: int, t: bool = False, at: int = 0) -> TensorView:
    """A contiguous tensor on GPU 0; ``t``: transposed in its last two extents."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    view = TensorView(4096 + at, shape, tuple(strides), dtype, 0)
    if not t:
        return view
    return TensorView(view.ptr, (*shape[:-2], *shape[:-3:-1]), (*strides[:-2], *strides[:-3:-1]), dtype, 0)


def gemm(**changes: Any) -> Gemm:
    """bf16 activations (16, 256) times u4 weights for 64 columns, with scales of groups of 64."""
    operands: dict[str, Any] = {
        "a": tensor("bf16", 16, 256),
        "b": unpacked("b", tensor("u8", 64, 128, t=True), "u4", 256),
        "d": tensor("bf16", 16, 64),
        "c": None,
        "b_scale": tensor("bf16", 4, 64),
    }
    return bound(**(operands | changes))


def test_a_narrow_b_is_solved_as_the_transposed_problem() -> None:
    found = gemm(b_zero=tensor("bf16", 4, 64, at=512), c=tensor("f32", 16, 64, at=1024))
    p = found.problem
    assert (p.m, p.n, p.k, p.batch) == (64, 16, 256, 1)
    assert (p.a_dtype, p.a_major, p.a_scale, p.a_align) == ("u4", "k", "1x64z", 16)
    assert (p.b_dtype, p.b_major, p.b_scale) == ("bf16", "k", "none")
    assert (p.c_dtype, p.c_major, p.d_major) == ("f32", "m", "m")
    assert found.a.stride == 256
    assert found.b.stride == 256
    assert found.zero is not None
    assert found.zero.ptr == 4096 + 512
    names = {x: operand.name for x, operand in found.operands.items()}
    assert names == {"a": "b", "b": "a", "c": "c", "d": "out", "scale": "b_scale", "zero": "b_zero"}


def test_a_narrow_a_is_solved_as_it_is() -> None:
    found = bound(
        tensor("s8", 64, 256),
        tensor("f16", 16, 256, t=True),
        tensor("f16", 64, 16),
        None,
        a_scale=tensor("f16", 2, 64, t=True),
    )
    p = found.problem
    assert (p.m, p.n, p.a_dtype, p.a_scale, p.d_major) == (64, 16, "s8", "1x128", "n")
    assert found.scale is not None
    assert found.scale.name == "a_scale"
    assert found.scale.stride == 64


def e4m3_gemm(**changes: Any) -> Gemm:
    """e4m3 activations (16, 256) times s4 weights for 64 columns, with scales of groups of 128."""
    operands: dict[str, Any] = {
        "a": tensor("e4m3", 16, 256),
        "b": unpacked("b", tensor("u8", 64, 128, t=True), "s4", 256),
        "d": tensor("bf16", 16, 64),
        "c": None,
        "b_scale": tensor("f32", 2, 64),
    }
    return bound(**(operands | changes))


def test_s4_beside_e4m3_has_scales_of_rows_and_of_groups() -> None:
    found = e4m3_gemm()
    p = found.problem
    assert (p.a_dtype, p.a_scale, p.b_dtype, p.b_scale, p.promote) == ("s4", "1x128", "e4m3", "none", 4)
    assert found.scale is not None
    assert found.scale.dtype == "f32"
    given = {
        "a": tensor("e4m3", 16, 256),
        "b": unpacked("b", tensor("u8", 64, 128, t=True), "s4", 256),
        "a_scale": tensor("f32", 16, 1),
        "b_scale": tensor("f32", 2, 64),
    }
    text, kinds = scaled_epilogue(None, given, ())
    assert [*kinds] == ["a_scale"]
    p = p.but(epilogue=spelling(transposed(parse(str(text)))))
    name = "sm90a_s4k16s1x128_e4m3k16_f32p4_none_bf16m16_128x64x128_1x1_cooperative_s11_m8_k1_linear"
    config = replace(parse_name(name), epilogue=p.epilogue)
    assert not faults(config, p)
    assert legal(config)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"b_scale": None}, "b_scale is missing; s4 beside e4m3 needs an f32 scale for each 128 elements"),
        ({"b_zero": tensor("f32", 2, 64)}, "b_zero is passed; s4 beside e4m3 .* has no zero points"),
        ({"b_scale": tensor("bf16", 2, 64)}, r"b_scale is bf16 \(2, 64\); it must be f32 .*b_scale.float"),
        ({"b_scale": tensor("f32", 4, 64)}, r"b_scale has shape \(4, 64\); .* must be \(2, 64\)"),
        ({"b": unpacked("b", tensor("u8", 64, 128, t=True), "u4", 256)}, "kernels multiply only s4 weights by e4m3"),
        ({"a": tensor("e5m2", 16, 256)}, "kernels multiply only s4 weights by e4m3"),
    ],
)
def test_what_s4_beside_e4m3_does_not_have(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        e4m3_gemm(**changes)


def test_scales_of_other_4_bit_weights_beside_e4m3_are_not_blamed() -> None:
    b = unpacked("b", tensor("u8", 64, 128, t=True), "u4", 256)
    with pytest.raises(OperandError, match="kernels multiply only s4 weights by e4m3"):
        scaled_epilogue(None, {"a": tensor("e4m3", 16, 256), "b": b, "b_scale": tensor("f32", 2, 64)}, ())


def test_two_elements_lie_in_a_byte_along_k() -> None:
    view = unpacked("b", tensor("s8", 3, 64, 20, t=True), "s4", 39)
    assert (view.dtype, view.shape, view.strides) == ("s4", (3, 39, 64), (2560, 1, 40))
    assert unpacked("b", tensor("u8", 64, 20, t=True), "u4", 17).shape == (40, 64)
    assert unpacked("a", tensor("u8", 64, 20), "u4", 40).shape == (64, 40)
    assert unpacked("b", tensor("u8", 64, 20, t=True), "e4m3", 20).dtype == "e4m3"


@pytest.mark.parametrize(
    ("k", "count", "scaling"),
    [(256, 2, "1x128"), (256, 4, "1x64"), (256, 8, "1x32"), (200, 7, "1x32"), (30, 1, "1x128")],
)
def test_the_group_follows_from_the_scales(k: int, count: int, scaling: str) -> None:
    b = unpacked("b", tensor("u8", 64, -(-k // 2), t=True), "u4", k)
    found = gemm(a=tensor("bf16", 16, k), b=b, b_scale=tensor("bf16", count, 64))
    assert found.problem.a_scale == scaling


MX: dict[str, Any] = {"b": unpacked("b", tensor("u8", 64, 128, t=True), "e2m1", 256)}


def test_e2m1_weights_have_ue8m0_scales_of_32_elements() -> None:
    found = gemm(**MX, b_scale=tensor("ue8m0", 8, 64))
    assert (found.problem.a_dtype, found.problem.a_scale, found.problem.a_align) == ("e2m1", "1x32e8", 16)
    assert found.scale is not None
    assert (found.scale.dtype, found.scale.stride) == ("ue8m0", 64)
    transposed = bound(
        unpacked("a", tensor("u8", 64, 128), "e2m1", 256),
        tensor("bf16", 16, 256, t=True),
        tensor("bf16", 64, 16),
        None,
        a_scale=tensor("ue8m0", 8, 64, t=True),
    )
    assert (transposed.problem.a_scale, transposed.problem.d_major) == ("1x32e8", "n")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {**MX, "b_scale": tensor("bf16", 8, 64)},
            r"must be ue8m0 \(8, 64\): pass b_scale.view\(torch.float8_e8m0fnu\)",
        ),
        ({**MX, "b_scale": tensor("ue8m0", 4, 64)}, r"must be \(8, 64\): one scale"),
        ({**MX, "b_scale": None}, "b is e2m1, and b_scale is missing"),
        ({**MX, "b_scale": tensor("ue8m0", 8, 64), "b_zero": tensor("ue8m0", 8, 64)}, "which has no zero points"),
        ({"b_scale": tensor("bf16", 3, 64)}, r"must be \(2, 64\) or \(4, 64\) or \(8, 64\)"),
        ({"b_scale": tensor("f16", 4, 64)}, "must be bf16"),
        ({"b_scale": tensor("bf16", 64, 4, t=True)}, "it must be contiguous along N"),
        ({"b_scale": tensor("bf16", 2, 4, 64)}, "does not broadcast"),
        ({"b_scale": None, "b_zero": tensor("bf16", 4, 64)}, "without b_scale"),
        ({"b_zero": tensor("bf16", 2, 64)}, "b_zero is bf16"),
        ({"a_scale": tensor("bf16", 4, 64)}, "the wider operand"),
        ({"b": tensor("bf16", 64, 256, t=True), "b_scale": None, "b_zero": tensor("bf16", 4, 64)}, "narrower"),
    ],
)
def test_scales_that_do_not_fit_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        gemm(**changes)


def test_a_batch_of_weights_has_a_batch_of_scales() -> None:
    a, d = tensor("bf16", 3, 16, 256), tensor("bf16", 3, 16, 64)
    batched = unpacked("b", tensor("u8", 3, 64, 128, t=True), "u4", 256)
    found = gemm(a=a, b=batched, d=d, b_scale=tensor("bf16", 3, 4, 64))
    assert (found.problem.batch, found.scale and found.scale.batch_stride) == (3, 256)
    with pytest.raises(OperandError, match="both must be shared by the batch, or neither"):
        gemm(a=a, b=batched, d=d)
    # Shared weights: the batch is more rows of the activations.
    shared = gemm(a=a, d=d)
    assert (shared.problem.batch, shared.problem.n) == (1, 48)


def of_groups(**changes: Any) -> Gemm:
    """bf16 tokens (48, 256) times u4 weights of 3 experts for 64 columns, with scales of groups of 64."""
    operands: dict[str, Any] = {
        "a": tensor("bf16", 48, 256),
        "b": unpacked("b", tensor("u8", 3, 64, 128, t=True), "u4", 256),
        "d": tensor("bf16", 48, 64),
        "b_scale": tensor("bf16", 3, 4, 64),
        "offsets": tensor("s32", 3, at=512),
    }
    return bound(**{name: x for name, x in (operands | changes).items() if x is not None})


def test_groups_of_rows_with_narrow_weights_are_groups_along_n() -> None:
    found = of_groups(b_zero=tensor("bf16", 3, 4, 64, at=512))
    p = found.problem
    assert (p.batching, p.m, p.n, p.k, p.batch) == ("ngrouped", 64, 48, 256, 3)
    assert (p.a_dtype, p.a_scale, p.b_dtype, p.d_major) == ("u4", "1x64z", "bf16", "m")
    assert (found.a.batch_stride, found.b.batch_stride, found.d.batch_stride) == (64 * 256, 0, 0)
    assert found.scale is not None
    assert (found.scale.batch_stride, found.scale.stride) == (256, 64)
    slots = of_groups(
        a=tensor("bf16", 3, 16, 256), d=tensor("bf16", 3, 16, 64), offsets=None, counts=tensor("s32", 3, at=512)
    ).problem
    assert (slots.batching, slots.m, slots.n, slots.batch) == ("nmasked", 64, 16, 3)
    s8 = of_groups(b=tensor("s8", 3, 64, 256, t=True), b_scale=None).problem
    assert (s8.a_dtype, s8.a_scale, s8.batching) == ("s8", "none", "ngrouped")


def test_rows_beside_narrow_weights_are_found_by_an_index() -> None:
    found = of_groups(a=tensor("bf16", 20, 256), rows=tensor("s32", 48, at=1 << 16))
    assert (found.problem.batching, found.problem.rows, found.problem.n) == ("ngrouped", "gathered", 48)
    written = {name: value for name, _, value in scalars(found, ())}
    assert (written["b_pointer"], written["b_row_chunks"], written["b_rows"]) == (found.b.ptr, 32, 20)
    name = "sm90a_u4k16s1x64_bf16k16_f32_none_bf16m16_128x256x64_1x1_cooperative_s3_m8gatheredngrouped_k1_linear"
    offsets = launch_spec(parse_name(name)).offsets
    assert {"rows_pointer", "rows_stride", "b_pointer", "b_row_chunks", "b_rows"} < offsets.keys()
    assert is_swapped(parse_name(name), found.problem) is False


def test_one_group_may_share_scales_without_a_batch() -> None:
    one = {"b": unpacked("b", tensor("u8", 1, 64, 128, t=True), "u4", 256), "offsets": tensor("s32", 1, at=512)}
    for scale in (tensor("bf16", 4, 64), tensor("bf16", 1, 4, 64)):
        found = of_groups(b_scale=scale, **one)
        assert (found.problem.batch, found.problem.a_scale) == (1, "1x64")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"a": tensor("s8", 48, 256), "b": tensor("bf16", 3, 256, 64)}, "upconverting a is not supported with offsets"),
        ({"b": tensor("s8", 64, 256, t=True), "d": tensor("bf16", 3, 48, 64)}, "upconverting b is not supported with"),
        ({"b_scale": tensor("bf16", 4, 64)}, "both must be shared by the batch, or neither"),
        ({"b": tensor("bf16", 3, 256, 64), "b_scale": None, "b_zero": tensor("bf16", 3, 4, 64)}, "narrower"),
        ({"epilogue": parse("d = silu(gate) * up"), "d": tensor("bf16", 48, 32)}, "use gate8 and up8"),
    ],
)
def test_groups_that_kernels_do_not_upconvert_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        of_groups(**changes)


@pytest.mark.parametrize(
    ("view", "dtype", "says"),
    [
        (tensor("bf16", 64, 128), "u4", "to read it as u4 it must be a tensor of bytes"),
        (tensor("u8", 64, 128), "bf16", "to read it as bf16 it must be a tensor of bytes"),
        (tensor("u8", 128, 64), "u4", "must be contiguous"),
        (tensor("u8", 64, 24, t=True), "e2m1", "b has K = 48; for e2m1 it must be a multiple of 32"),
    ],
)
def test_bytes_that_do_not_hold_it_are_refused(view: TensorView, dtype: Any, says: str) -> None:
    with pytest.raises(OperandError, match=says):
        unpacked("b", view, dtype, 256)
