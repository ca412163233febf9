"""Grids and workspaces of kernels that sum slices of K, as far as they go without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.emitters.emit import emit, launch_spec
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.workspace_layout import (
    MIN_SHARE,
    WorkspaceSize,
    clusters,
    in_slices,
    partial_matrices,
    reduction_ctas,
    workspace_size,
)
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.launch import LaunchSpec
from gemmill.library.problem import GemmProblem
from gemmill.runtime.launch.launcher import grid_ctas

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_2x1_cooperative_s4_m8_{}_linear"
PROBLEM = GemmProblem(512, 512, 512, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
EXTENTS = st.integers(1, 5000)


def spec(parts: str, slices: int = 1) -> LaunchSpec:
    return in_slices(launch_spec(parse_name(NAME.format(parts))), slices)


@given(EXTENTS, EXTENTS, st.integers(1, 4), st.sampled_from(("n", "m")), st.sampled_from([2, 7, 100]))
def test_partial_matrices_hold_every_part_in_whole_vectors(
    m: int, n: int, batch: int, major: Literal["n", "m"], slices: int
) -> None:
    problem = replace(PROBLEM, m=m, n=n, batch=batch, d_major=major)
    split = spec("splitk", slices)
    assert split.k_decomposition is not None
    assert split.k_decomposition.reduction is not None
    matrices = partial_matrices(split.k_decomposition, problem)
    contiguous, strided = (n, m) if major == "n" else (m, n)
    assert matrices.strided == strided
    assert matrices.matrices == slices * batch
    assert 0 <= matrices.contiguous - contiguous < 4
    assert matrices.contiguous * 4 % 16 == 0
    assert workspace_size(split, problem, 1) == WorkspaceSize(matrices.elements * 4, 0)
    computed = reduction_ctas(split, problem) * split.k_decomposition.reduction.vectors * 4
    assert 0 <= computed - matrices.contiguous * strided * batch < split.k_decomposition.reduction.vectors * 4


@given(EXTENTS, EXTENTS, st.integers(0, 1 << 20), st.integers(1, 132))
def test_stream_takes_a_share_for_each_cluster_and_a_slot_for_each_share(m: int, n: int, k: int, most: int) -> None:
    problem, stream = replace(PROBLEM, m=m, n=n, k=k), spec("k1stream")
    tiles = -(-m // 256) * -(-n // 128)
    count = clusters(stream, problem, tiles, most)
    assert min(tiles, most) <= count <= most
    assert grid_ctas(stream, problem, most) == 2 * count
    steps = -(-k // 64)
    if tiles < count:
        assert tiles * steps >= MIN_SHARE * count, "adding up smaller shares takes longer than they do"
    assert stream.k_decomposition is not None
    assert workspace_size(stream, problem, count) == WorkspaceSize(count * 256 * 128 * 4, count * 4 * 4)


def test_a_cluster_needs_no_workspace_and_has_a_tile_for_all_its_blocks() -> None:
    launch = launch_spec(parse_name(NAME.format("k4cluster").replace("2x1", "1x1").replace("128x128x64", "128x256x32")))
    assert launch.k_decomposition is None
    assert "partials" not in launch.offsets
    assert (launch.tile, launch.cluster, launch.cluster_ctas) == ((128, 256), (1, 1), 4)
    assert grid_ctas(launch, PROBLEM, 30) == 4 * 4 * 2
    assert grid_ctas(launch, PROBLEM, 5) == 4 * 5
    assert grid_ctas(launch, PROBLEM, 30, sm_count=11) == 4 * 2
    with pytest.raises(UnsupportedProblemError, match=r"sm_count is 3; .* runs in clusters of 4 SMs"):
        grid_ctas(launch, PROBLEM, 30, sm_count=3)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(UnsupportedProblemError, match="output tiles; at most"):
        grid_ctas(spec("splitk", 256), replace(PROBLEM, m=1 << 20, n=1 << 20, batch=8), 66)
    with pytest.raises(UnsupportedProblemError, match="that stream-K supports"):
        grid_ctas(spec("k1stream"), replace(PROBLEM, k=(1 << 31) - 4096), 66)
    with pytest.raises(UnsupportedProblemError, match="split-K supports fewer than"):
        reduction_ctas(spec("splitk", 2), replace(PROBLEM, m=1 << 17, n=1 << 17))


def test_a_split_kernel_stores_partial_sums_and_reduces_in_a_second_kernel() -> None:
    source = emit(parse_name(NAME.format("splitk").replace("none_bf16n16", "bf16n2_bf16n4")))
    boxes = {box.operand: box for box in source.launch.boxes}
    assert set(boxes) == {"a", "b", "partials"}
    assert boxes["partials"].dtype == "f32"
    assert source.launch.k_decomposition is not None
    assert source.launch.k_decomposition.reduction is not None
    assert source.launch.k_decomposition.reduction.entry in source.text
    assert "kAlignC = 2, kAlignD = 4" in source.text
