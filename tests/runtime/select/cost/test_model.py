"""The analytic model beside measured times, and what it has to say of each part of a kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.select.problems import H200, KERNELS, problem

from gemmill.library.arch import Gpu
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.model import analytic, features, in_words, tiles_of_groups, times
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.model_file import INPUTS, model_of

# Measured on an H200 at full clock, TFLOP/s (profiler/results/h200-full-clock.parquet).
MEASURED = {
    (1992, 16384, 3072): (743, 723, math.nan),
    (1010, 8192, 2048): (713, 709, math.nan),
    (11034, 1664, 2176): (675, 721, math.nan),
    (12294, 1024, 2048): (723, 727, math.nan),
    (12229, 368, 712): (306, math.nan, 378),
    (1380, 1288, 1224): (math.nan, 374, 319),
}


@pytest.mark.parametrize("size", MEASURED)
def test_the_model_agrees_with_what_was_measured(size: tuple[int, int, int]) -> None:
    model = model_of(H200.name)
    assert model is not None
    table = FeatureTable.of([(SlicedKernel(name), parse_name(name), False) for name in KERNELS], H200, model.network)
    gemm = problem(*size)
    predicted = gemm.flops / times(table, gemm, H200)["us"] / 1e6
    measured = np.array(MEASURED[size])
    assert np.nanmax(np.abs(predicted / measured - 1)) < 0.2
    picked = np.where(np.isnan(measured), 0, predicted).argmax()
    assert measured[picked] > 0.97 * np.nanmax(measured), "what it picks is as fast as any"


@pytest.mark.parametrize(("size", "least"), [((8192, 8192, 8192), 3.6), ((64, 128, 16384), 1.0)])
def test_slower_tensor_cores_take_longer_where_they_are_the_bound(size: tuple[int, int, int], least: float) -> None:
    def us(gpu: Gpu) -> Any:
        table = FeatureTable.of([(SlicedKernel(name), parse_name(name), False) for name in KERNELS], gpu)
        return analytic(table, problem(*size), gpu)["us"]

    fast, slow = us(H200), us(H200._replace(mma_rate=0.25))
    assert ((least * fast <= slow) & (slow <= 4 * fast)).all()


def test_blocks_of_mma_share_an_sm_where_there_are_more_than_sms() -> None:
    name = "sm90_bf16k8_bf16k8_f32_none_bf16n4_16x16x128_1x1_multistage_s4_m8_k1_linear"
    table = FeatureTable.of([(SlicedKernel(name), parse_name(name), False)], H200)
    alone, shared = (analytic(table, problem(16, n, 4100), H200) for n in (2048, 4096))
    assert alone["waves"] == shared["waves"] == 1
    for work, n in ((alone, 2048), (shared, 4096)):
        assert "(97% utilised)" in in_words(table, 0, float(work["us"][0]), problem(16, n, 4100), H200)
    assert alone["us"] < shared["us"] < 2 * alone["us"]


def test_tiles_of_a_row_major_b_are_whole_swizzle_spans() -> None:
    """4096x4096x4096 with tiles of 112 columns took 410 us where B was row-major, and 210 where they had 128."""
    name = "sm90a_bf16k16_bf16{}16_f32_none_bf16n16_128x{}x64_1x1_pingpong_s6_m8_k1_linear"
    square = problem(4096, 4096, 4096)

    def us(major: Any, columns: int) -> float:
        return _us(name.format(major, columns), replace(square, b_major=major))

    assert us("mn", 128) == us("k", 128)
    assert us("mn", 112) > 1.5 * us("k", 112)


def test_d_takes_longer_if_rows_of_its_boxes_end_within_sectors() -> None:
    """8192x8192x64 with tiles of 128x176 and an n-major D took 60 us, with 128x192 43."""
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16{}16_128x{}x64_1x1_pingpong_s4_m8_k1_linear"
    product = problem(8192, 8192, 64)

    def us(major: str, columns: int) -> float:
        return _us(name.format(major, columns), product)

    assert us("n", 176) > 1.2 * us("n", 192)
    assert us("m", 176) < 1.1 * us("n", 192)


def test_more_slices_are_faster_beside_an_unaligned_a() -> None:
    """16x5001x14337 with 64x16x128: 62 us in 3 slices, 53 in 5, and 61 with the shorter rows of 64x16x64."""
    name = "sm90a_bf16k2_bf16k16_f32_none_bf16m16_64x16x{}_1x1_pingpong_s{}_m8_splitk_linear"
    weight = problem(5001, 16, 14337)

    def us(columns: int, stages: int, slices: int) -> float:
        kernel = SlicedKernel(name.format(columns, stages), slices)
        table = FeatureTable.of([(kernel, parse_name(kernel.name), False)], H200)
        return float(analytic(table, weight, H200)["us"][0])

    assert us(128, 10, 3) > 1.1 * us(128, 10, 5)
    assert us(64, 16, 5) > 1.05 * us(128, 10, 5)


def _us(name: str, gemm: GemmProblem) -> float:
    """Microseconds of one kernel by the analytic model."""
    return float(analytic(FeatureTable.of([(SlicedKernel(name), parse_name(name), False)], H200), gemm, H200)["us"][0])


def test_rows_beyond_an_operand_cost_no_loads() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x144x64_1x1_pingpong_s5_m8_k1_linear"
    wide = problem(128, 9216, 8192)
    times = [_us(name, replace(wide, m=rows)) for rows in (16, 80, 128, 136, 192, 256)]
    assert times == sorted(times)
    assert times[0] < times[2] < times[3]


MEASURED_CROWDED = {
    "bf16mn16_bf16k16_f32_none_bf16n16_64x64x64_1x1_pingpong_s12": 50.3,
    "bf16mn16_bf16k16_f32_none_bf16n16_64x64x64_1x2_pingpong_s12": 29.6,
    "bf16k16_bf16mn16_f32_none_bf16m16_64x64x64_1x1_pingpong_s12": 50.0,
    "bf16k16_bf16mn16_f32_none_bf16m16_64x64x64_2x1_pingpong_s12": 29.6,
    "bf16k16_bf16mn16_f32_none_bf16m16_192x80x64_2x1_cooperative_s5": 21.3,
}
"""Microseconds of 8x24576x1536 with an m-major A, an H200: as it is and transposed (bf16-layouts-20261128)."""


@pytest.mark.parametrize("kernel", MEASURED_CROWDED)
def test_short_rows_of_an_mn_major_operand_are_crowded_unless_clusters_share_them(kernel: str) -> None:
    config = parse_name(f"sm90a_{kernel}_m8_k1_linear")
    few = replace(problem(8, 24576, 1536), a_major="mn")
    swap_ab = needs_swap(config, few)
    assert swap_ab is not None
    table = FeatureTable.of([(SlicedKernel(kernel), config, swap_ab)], H200)
    assert analytic(table, few, H200)["us"][0] == pytest.approx(MEASURED_CROWDED[kernel], rel=0.2)


def test_transposing_takes_time_and_registers_do_not() -> None:
    name = "sm90a_tf32{}16_tf32{}16_f32_none_f32n16_128x128x32_1x1_cooperative_s4_m8_k1_linear"
    square = GemmProblem(4096, 4096, 4096, 1, "tf32", "k", "tf32", "k", "f32", "f32", "n")
    k_major = _us(name.format("k", "k"), square)
    assert _us(name.format("mn", "k"), square) == pytest.approx(k_major, rel=0.01)
    assert _us(name.format("k", "mn"), square) > 1.12 * k_major


def test_the_network_gets_the_rows_of_each_operand_of_the_kernel() -> None:
    """Rows of B begin within sectors where K is 4104, rows of an m-major A at lines."""
    name = "sm90a_bf16{}_bf16{}_f32_none_bf16{}_128x128x64_2x1_pingpong_s6_m8_k1_linear"
    direct, swapped = name.format("mn16", "k16", "n16"), name.format("k16", "mn16", "m16")
    entries = [(SlicedKernel(direct), parse_name(direct), False), (SlicedKernel(swapped), parse_name(swapped), True)]
    table = FeatureTable.of(entries, H200)
    gemm = GemmProblem(4096, 4096, 4104, a_major="mn")
    inputs = features(table, analytic(table, gemm, H200))
    rows = inputs[:, [INPUTS.index("row A"), INPUTS.index("row B")]]
    assert rows[0, 0] < rows[0, 1]
    assert (rows[0] == rows[1, ::-1]).all()


def test_groups_take_the_tiles_that_the_scheduler_gives_them() -> None:
    rows = np.array([1.0, 64, 65, 128, 129, 255, 256, 257, 700])
    tiles, filled = tiles_of_groups(rows, np.array(128.0), np.array(256.0), np.array(True))
    assert (tiles == np.ceil(rows / 128) / 2).all(), "a last tile without a pair is half a cluster tile"
    assert (filled == tiles).all(), "tiles of 128 rows are multiplied whole"
    tiles, filled = tiles_of_groups(rows, np.array(256.0), np.array(256.0), np.array(False))
    assert (tiles == np.ceil(rows / 256)).all()
    assert (filled == np.where(rows <= 256, np.ceil(rows / 64) / 4, tiles)).all()
