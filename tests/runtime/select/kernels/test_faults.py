"""What a kernel lacks for a problem is named, and the nearest kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.runtime.select.problems import H200, KERNELS, problem

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.arithmetic import parse_arithmetic
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.kernels.faults import faults
from gemmill.runtime.select.selector import Selector


def test_the_constraint_and_the_nearest_kernel_are_named(kernels: dict[str, GemmConfig]) -> None:
    arrays = (replace(c, scheduler=replace(c.scheduler, batching="array")) for c in kernels.values())
    by_tma = (config for config in arrays if config.family == "wgmma" and config.a.align == 16)
    selector = Selector({kernel_name(config): config for config in by_tma}, H200)
    own = replace(problem(64, 64, 64), batching="array")
    unaligned = replace(own, a_align=2)
    with pytest.raises(UnsupportedProblemError, match=r"nearest of \d+, sm90a_\w+, needs A's alignment of at least 16"):
        selector.select(unaligned)
    dtype = replace(own, a_dtype="f32")
    with pytest.raises(UnsupportedProblemError, match=r"A's dtype bf16 \(the problem has f32\)$"):
        selector.select(dtype)
    accumulator = replace(own, accumulator="f16")
    with pytest.raises(UnsupportedProblemError, match=r"accumulator f32 \(the problem has f16\)$"):
        selector.select(accumulator)


def test_narrow_weights_without_scales_are_told_what_they_need() -> None:
    names = [
        f"sm90a_u4k16s{scale}_bf16k16_f32_none_bf16m16_64x32x256_1x1_cooperative_s4_m8_k1_linear" for scale in SCALES
    ]
    selector = Selector({name: parse_name(name) for name in names}, H200)
    asked = replace(problem(64, 64, 256), a_dtype="u4", d_major="m")
    for own in (asked, asked.transposed):
        with pytest.raises(
            UnsupportedProblemError, match=r": u4 needs scales: pass one for each group of 64 or 128 elem"
        ):
            selector.select(own)


SCALES = ("1x128z", "1x64")


def test_a_kernel_serves_its_own_problem_and_no_other() -> None:
    config, own = parse_name(KERNELS[0]), problem(256, 256, 256)
    assert faults(config, own) == []
    others: list[tuple[GemmProblem, str]] = [
        (replace(own, a_dtype="f16"), "A's dtype bf16 (the problem has f16)"),
        (replace(own, b_major="mn"), "B's major k (the problem has mn)"),
        (replace(own, d_major="m"), "D's major n (the problem has m)"),
        (replace(own, a_align=1), "A's alignment of at least 2 bytes (the problem has 1)"),
        (replace(own, accumulator="f16"), "accumulator f32 (the problem has f16)"),
    ]
    for other, says in others:
        assert faults(config, other) == [says]
    with_c = replace(own, c_dtype="bf16", c_major="n")
    assert faults(config, with_c) == ["C's dtype none (the problem has bf16)", "C's major none (the problem has n)"]


def test_kernels_that_are_selected_only_for_their_bits_are_named_with_them() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_tree_linear"
    selector, asked = Selector({name: parse_name(name)}, H200), problem(64, 128, 1024)
    for arithmetic in (None, parse_arithmetic("k16/8")):
        with pytest.raises(
            UnsupportedProblemError, match=r"tree_linear is selected only for its own. Pass bits='k16/8t'"
        ):
            selector.select(asked, arithmetic=arithmetic)
    assert selector.select(asked, arithmetic=parse_arithmetic("k16/8t")).kernel == (name, 8)


def test_c_is_served_by_kernels_with_that_c_alone(selector: Selector) -> None:
    for dtype, major in (("bf16", "n"), (None, None)):
        asked = replace(problem(2048, 2048, 256), c_dtype=dtype, c_major=major)  # type: ignore[arg-type]
        choice = selector.select(asked)
        c, own = choice.config.c, {"n": "m"}.get(major or "") if choice.swap_ab else major
        assert (c and c.dtype, c and c.major) == (dtype, own)
    with pytest.raises(UnsupportedProblemError, match=r"C's dtype \w+ \(the problem has f16\)"):
        selector.select(replace(problem(256, 256, 256), c_dtype="f16", c_major="n"))


def test_scales_that_no_kernel_here_has_are_named() -> None:
    name = "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_128x128x128_1x1_pingpong_s4_m8_k1_linear"
    own = GemmProblem(m=256, n=256, k=256, a="e4m3", a_scale="1x128", b_scale="128x128")
    for config, asked, says in (
        (
            parse_name(name),
            own.but(a_scale="1x128e8", b_scale="128x128e8"),
            "would support it with scales of this type",
        ),
        (parse_name(name), own.but(a_scale="1x128e8"), r"needs A's scale 1x128 \(the problem has 1x128e8\)"),
        (parse_name(name), own.but(a_scale="1x128e8", b_scale="128x128e8", d_major="m"), r"needs D's major n"),
    ):
        with pytest.raises(UnsupportedProblemError, match=says):
            Selector({name: config}, H200).select(asked)


def test_kernels_for_another_gpu_are_not_offered(kernels: dict[str, GemmConfig]) -> None:
    blackwell = DEFAULT_GPU._replace(name="NVIDIA B200", capability=(10, 0))
    with pytest.raises(UnsupportedProblemError, match=r"supports NVIDIA B200 \(compute capability 10\.0\)"):
        Selector(kernels, blackwell).select(problem(64, 64, 64))


def test_a_bound_that_no_kernel_keeps_is_named(selector: Selector) -> None:
    gemm = problem(4096, 4096, 4096)
    clusters = {n: c for n, c in selector.configs.items() if c.cluster.m == 2 and c.cluster.n == 1}
    with pytest.raises(UnsupportedProblemError, match=r"on 1 SMs: .* clusters of at least 2 CTAs, .* raise sm_count"):
        Selector(clusters, H200).select(gemm, 1)


def test_transposing_twice_changes_nothing() -> None:
    gemm = GemmProblem(3, 5, 7, 2, "bf16", "k", "f16", "mn", "f32", "bf16", "n", "f32", "m", 2, 4, 8, 16)
    there = gemm.transposed
    assert (there.m, there.n, there.k, there.batch) == (5, 3, 7, 2)
    assert (there.a_dtype, there.a_major, there.a_align) == ("f16", "mn", 4)
    assert (there.b_dtype, there.b_major, there.b_align) == ("bf16", "k", 2)
    assert (there.c_major, there.d_major, there.c_align, there.d_align) == ("n", "m", 8, 16)
    assert there.transposed == gemm
    assert not replace(gemm, batching="grouped").can_transpose
    assert not replace(gemm, a_scale="1x128").can_transpose
    assert not replace(gemm, epilogue="d = gate8 * up8").can_transpose
    assert replace(gemm, b_dtype="s8", epilogue="d = gate8 * up8").can_transpose
