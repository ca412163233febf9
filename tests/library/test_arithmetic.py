"""Tests of the arithmetic of kernels: names, and the kernels that share one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gemmill
from gemmill.library.arithmetic import STEPS, Arithmetic, arithmetic_named, arithmetic_of, parse_arithmetic
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel, in_each_number

_SHARED = st.sampled_from([32, 64, 128, 512])
_WHOLE = st.builds(Arithmetic, st.sampled_from(sorted(STEPS)), st.sampled_from([0, 4]))
_SLICED = st.builds(
    lambda whole, slices, tree, unit: Arithmetic(whole.step, whole.promote, slices=slices, tree=tree, unit=unit),
    _WHOLE,
    st.integers(0, 256).filter(lambda slices: slices != 1),
    st.booleans(),
    _SHARED,
)
_WARPS = st.builds(
    lambda whole, warps, vector, unit: Arithmetic(whole.step, warps=warps, vector=vector, unit=unit, target="sm80"),
    _WHOLE,
    st.integers(2, 16),
    st.sampled_from(["", "8x4", "2x2", "8n4"]),
    _SHARED,
)
_ADDED = {
    "k16/8": "one after another",
    "k16/9@64": "one after another, in 2 groups, whose sums are added likewise",
    "k16/8t": "as a binary tree",
    "k16/S": "one after another",
}
"""How the sums of slices are added, in words."""
_STREAM = st.builds(lambda whole, unit: Arithmetic(whole.step, stream=True, unit=unit), _WHOLE, _SHARED)


@given(st.one_of(_WHOLE, _SLICED, _WARPS, _STREAM))
def test_a_name_gives_its_arithmetic_back(arithmetic: Arithmetic) -> None:
    assert parse_arithmetic(str(arithmetic)) == arithmetic
    assert arithmetic.in_words()


@pytest.mark.parametrize(
    "name", ["", "k17", "k16/1@64", "k16/08@64", "k16/8 ", "K16", "k16w1@64", "fastest", f"k16/{10**20}"]
)
def test_other_text_is_refused_with_examples(name: str) -> None:
    with pytest.raises(gemmill.ConfigError, match="is not the name of an arithmetic; examples: k16"):
        parse_arithmetic(name)


@pytest.mark.parametrize(
    ("name", "slices", "expected"),
    [
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear", 1, "k16"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_splitk_linear", 8, "k16/8"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_splitk_linear", 1, "k16"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_splitk_linear", 0, "k16/S"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x64x64_1x1_cooperative_s8_m8_k4cluster_linear", 0, "k16/4"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1stream_linear", 0, "k16/stream@64"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x192x64_2x1_cooperative_s4_m8_serial_linear", 4, "k16/4"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_1x1_cooperative_s6_m8_tree_linear", 4, "k16/4t"),
        ("sm90_bf16k2_bf16k2_f32_none_bf16n4_64x128x128_1x1_multistage_s3_m8_k1_linear", 1, "k16w2@128"),
        ("sm90_bf16k8_bf16k8_f32_none_bf16n4_16x16x128_1x1_multistage_s4_m8_k1_linear", 1, "k16w4@128"),
        # Warpgroups that take K tiles in turn.
        ("sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_1x1_cooperative_s8_m8_k1_linear", 1, "k16w4@512"),
        ("sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x256_1x1_cooperative_s8_m8_k1_linear", 1, "k16w4@1024"),
        ("sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_1x1_cooperative_s8_m8_splitk_linear", 4, "k16w4/4@512"),
        (
            "sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_1x1_cooperative_s8_m8_splitk_linear",
            16,
            "k16w4/16@512",
        ),
        ("sm90_bf16k8_bf16k8_f32_none_bf16any2_128x128x64_1x1_multistage_s4_m8_k1_linear", 1, "k16"),
        ("sm90_e4m3k8_e4m3k8_f32_none_bf16any2_64x64x128_1x1_multistage_s4_m8_k1_linear", 1, "k16x2"),
        ("sm90_tf32k4_tf32k4_f32_none_f32any4_64x64x32_1x1_multistage_s4_m8_k1_linear", 1, "k8"),
        ("sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x512_1x1_gemv_s4_m1_k1_linear", 1, "k16w8v8x2@512"),
    ],
)
def test_the_arithmetic_of_a_kernel(name: str, slices: int, expected: str) -> None:
    assert str(arithmetic_of(parse_name(name), slices)) == expected


def test_more_than_8_slices_are_added_in_groups() -> None:
    words = {name: parse_arithmetic(name).in_words().partition("whose f32 sums are added ")[2] for name in _ADDED}
    assert words == _ADDED


def test_a_name_that_does_not_determine_the_sums_has_no_arithmetic() -> None:
    plain = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_k1_linear"
    assert arithmetic_named(SlicedKernel(plain)) == "k16"
    for name in ("cublas", "", f"{plain}+src.0123456789ab", plain.replace("_k1_", "_k4split_")):
        assert arithmetic_named(SlicedKernel(name)) is None


def test_only_a_fixed_order_of_sums_is_fixed() -> None:
    fixed = {name: parse_arithmetic(name).is_fixed for name in ("k16", "k16/8", "k16/S", "k16/stream@64")}
    assert fixed == {"k16": True, "k16/8": True, "k16/S": False, "k16/stream@64": False}


def test_every_shipped_kernel_has_an_arithmetic_that_its_name_gives_back() -> None:
    kernels = [
        (config, kernel.slices)
        for config in gemmill.Registry(gpu="H200").configs().values()
        for kernel in in_each_number("", config)
    ]
    found = {arithmetic_of(config, slices) for config, slices in kernels}
    assert {str(a) for a in found} >= {"k16", "k8", "k32", "k32p4", "k4", "fma", "exact", "k16x2", "k16/8"}
    assert all(parse_arithmetic(str(arithmetic)) == arithmetic for arithmetic in found)
