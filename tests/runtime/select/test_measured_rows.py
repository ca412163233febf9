"""Measurements decide: those of this problem, on this GPU, and what ships of types alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.cases.manifests import shipped_kernels
from tests.cases.problems import plain
from tests.runtime.select.problems import H200, KERNELS, problem

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.dtypes import DTypeName
from gemmill.library.legality.rules import legal
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.selector import Selector


def test_a_measurement_of_this_problem_on_this_gpu_decides(kernels: dict[str, GemmConfig]) -> None:
    size, names = problem(1024, 1024, 1024), [*kernels][:3]
    rows = [
        Decision(problem=size, gpu="NVIDIA H200", kernel=name, us=us) for name, us in zip(names, (9, 7, 8), strict=True)
    ]
    choice = Selector(kernels, H200, rows).select(size)
    assert (choice.name, choice.source, choice.predicted_us) == (names[1], "measured", 7)
    assert choice.runners_up == (((names[2], 1), 8), ((names[0], 1), 9))
    assert "fastest of 3 kernels measured" in choice.reason


def test_brief_measurements_count_where_there_are_no_others(kernels: dict[str, GemmConfig]) -> None:
    size, (one, two) = problem(1024, 1024, 1088), [*kernels][:2]
    brief = Decision(problem=size, gpu="NVIDIA H200", kernel=one, us=5.0, final=False)
    final = Decision(problem=size, gpu="NVIDIA H200", kernel=two, us=6.0)
    assert Selector(kernels, H200, [brief]).select(size).name == one
    assert Selector(kernels, H200, [brief, final]).select(size).name == two
    assert Selector(kernels, H200, [brief, final]).measured_on(size) == [(6.0, SlicedKernel(two))]
    modelled = Selector(kernels, H200)
    choice = modelled.select(size)
    assert modelled.times(size)[choice.kernel] == choice.predicted_us == min(modelled.times(size).values())


def test_measurements_that_do_not_apply_are_passed_over(kernels: dict[str, GemmConfig]) -> None:
    size, name = problem(1024, 1024, 1024), next(iter(kernels))
    rows = [
        Decision(problem=size, gpu="NVIDIA H100 PCIe", kernel=name, us=1.0),
        Decision(problem=size, gpu="NVIDIA H200", kernel="sm90a_gone", us=1.0),
        Decision(problem=replace(size, batch=2), gpu="NVIDIA H200", kernel=name, us=1.0),
    ]
    assert Selector(kernels, H200, rows).select(size) == Selector(kernels, H200).select(size)


def test_measurements_of_slots_are_of_the_rows_that_they_say_or_of_any() -> None:
    kernels = {name: config for name, config in shipped_kernels("bf16").items() if "masked" in name}
    slots, (one, two) = GemmProblem(4096, 6144, 7168, groups=32, batching="masked"), [*kernels][:2]
    few, many = slots.but(expected_rows=20), slots.but(expected_rows=1024)

    def chosen(problem: GemmProblem, *measured: Decision) -> tuple[str, float]:
        choice = Selector(kernels, H200, measured).select(problem)
        return choice.source, choice.predicted_us

    own = Decision(problem=few, gpu=H200.name, kernel=one, us=7.0)
    unsaid = Decision(problem=slots, gpu=H200.name, kernel=two, us=8.0)
    assert [chosen(x, own, unsaid) for x in (few, many, slots)] == [("measured", 7.0), *[("measured", 8.0)] * 2]
    assert chosen(many, own) == chosen(many), "few rows say nothing of many"


def test_a_measured_kernel_runs_as_it_was_measured() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16m16_64x8x64_1x1_pingpong_s16_m8_k1_linear"
    few = problem(5, 4096, 4096)
    choice = Selector(
        {name: parse_name(name)}, H200, [Decision(problem=few, gpu=H200.name, kernel=name, us=7.0)]
    ).select(few)
    assert (choice.source, choice.swap_ab, choice.predicted_us) == ("measured", True, 7.0)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("sm90a_e4m3k16_e4m3k16_f32_none_bf16n16_128x128x128_1x2_pingpong_s6_m8_k1_linear", 4096),
        ("sm90a_e4m3k16_e4m3k16_f32_none_bf16m16_64x16x128_1x1_pingpong_s16_m8_k1_linear", 16),
    ],
)
def test_a_measured_kernel_that_keeps_more_of_the_sums_is_turned_where_d_is(name: str, rows: int) -> None:
    asked = plain((rows, 4096, 4096, 1), ("e4m3", "k"), ("e4m3", "k"), "f16", None, ("bf16", "n"))
    selector = Selector({name: parse_name(name)}, H200, [Decision(problem=asked, gpu=H200.name, kernel=name, us=7.0)])
    for found in (selector.select(asked), selector.candidates(asked, 1)[0]):
        assert (found.name, found.swap_ab) == (name, rows == 16)


def test_measurements_of_all_sms_say_nothing_of_fewer(kernels: dict[str, GemmConfig]) -> None:
    gemm = problem(4096, 4096, 4096)
    measuring = Selector(kernels, H200, [Decision(problem=gemm, gpu=H200.name, kernel=KERNELS[1], us=7.0)])
    assert measuring.select(gemm).source == "measured"
    assert measuring.select(gemm, 100).source == "model"


def test_times_of_another_gpu_whose_name_begins_alike_say_nothing(kernels: dict[str, GemmConfig]) -> None:
    gemm = problem(4096, 4096, 4096)
    other = Decision(problem=gemm, gpu="NVIDIA H200 NVL", kernel=KERNELS[1], us=7.0)
    smaller = H200._replace(name="NVIDIA H2")
    assert Selector(kernels, smaller, [other]).select(gemm).source == "model"
    assert Selector(kernels, H200, [other]).select(gemm).source == "measured"


@pytest.mark.parametrize(
    ("own", "formats", "a", "b", "d"),
    [
        ("fp8", ("e4m3", "e4m3", "bf16"), "e5m2", "e4m3", "bf16"),
        ("fp8", ("e4m3", "e4m3", "bf16"), "e4m3", "e4m3", "f16"),
        ("int8", ("s8", "s8", "s32"), "s8", "u8", "f32"),
    ],
)
def test_what_ships_of_types_alike_counts(own: str, formats: tuple[Any, ...], a: Any, b: Any, d: DTypeName) -> None:
    configs = shipped_kernels(own)
    accumulator: Any = "s32" if own == "int8" else "f32"
    first, second, output = formats
    shape = (16, 4096, 4096, 1)
    shipped = plain(shape, (first, "mn"), (second, "mn"), accumulator, None, (output, "n"))
    asked = plain(shape, (a, "mn"), (b, "mn"), accumulator, None, (d, "n"))
    selector = Selector(configs, H200, varies=True)
    measured, choice = selector.select(shipped), selector.select(asked)
    assert (measured.source, choice.source) == ("measured", "measured")
    assert "with compatible types" in choice.reason
    assert (choice.predicted_us, choice.swap_ab) == (measured.predicted_us, measured.swap_ab)
    assert choice.name == kernel_name(choice.config) not in configs
    assert legal(choice.config)
    assert needs_swap(choice.config, asked) is choice.swap_ab
    assert choice.config.tile == measured.config.tile
    assert selector.candidates(asked, 2)[0].name == choice.name
    # Nobody can compile for whom nothing varies.
    assert all(kernel.name in configs for kernel in Selector(configs, H200).times(asked))
