"""What nvMatmulHeuristics would take of a kernel set. It needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cases.manifests import shipped_kernels
from tests.cases.problems import plain

from gemmill.library.config.names import parse_name
from gemmill.profiler.baselines.heuristics import heuristic_pick, layout, missing, precision
from gemmill.runtime.select.kernels.faults import needs_swap

H200 = "NVIDIA H200"
CONFIGS = shipped_kernels("bf16")
LARGE = plain((4096, 4096, 4096, 1), ("bf16", "k"), ("bf16", "k"), "f32", None, ("bf16", "n"))


@pytest.fixture(autouse=True)
def library() -> None:
    if says := missing():
        assert "gemmill's extra 'heuristics'" in says
        pytest.skip(says)


@pytest.mark.parametrize("m", [1, 64, 4096])
def test_it_takes_a_kernel_that_serves_the_problem_with_the_tile_that_the_library_names(m: int) -> None:
    problem = replace(LARGE, m=m)
    name = heuristic_pick(CONFIGS, problem, H200)
    assert name is not None
    assert needs_swap(CONFIGS[name], problem) is not None
    tile = parse_name(name).tile
    if m == 4096:  # nobody would take less for so large a problem
        assert sorted((tile.m, tile.n)) == [128, 256]
    else:
        assert min(tile.m, tile.n) <= 64


def test_without_the_kernel_that_it_names_it_takes_the_nearest() -> None:
    first = heuristic_pick(CONFIGS, LARGE, H200)
    assert first is not None
    tile = CONFIGS[first].tile
    others = {name: config for name, config in CONFIGS.items() if config.tile != tile}
    nearest = heuristic_pick(others, LARGE, H200)
    assert nearest in others
    small = {name: config for name, config in CONFIGS.items() if config.tile.m * config.tile.n <= 64 * 64}
    taken = heuristic_pick(small, LARGE, H200)
    assert taken is not None
    assert max(config.tile.m * config.tile.n for config in small.values()) == small[taken].tile.m * small[taken].tile.n


def test_it_says_nothing_of_what_the_library_does_not_know() -> None:
    assert heuristic_pick(CONFIGS, LARGE, "NVIDIA GeForce RTX 2080") is None
    assert heuristic_pick(CONFIGS, replace(LARGE, a_dtype="s4"), H200) is None
    assert heuristic_pick({}, LARGE, H200) is None


def test_types_and_majors_in_the_librarys_words() -> None:
    assert precision(LARGE) == "TST"
    fp8 = replace(LARGE, a_dtype="e4m3", b_dtype="e5m2")
    assert precision(fp8) == "QRTST"
    assert precision(replace(fp8, d_dtype="e4m3")) == "QRTSQ"
    assert precision(replace(LARGE, a_dtype="tf32", b_dtype="tf32", d_dtype="f32")) == "SFS"
    assert layout(LARGE) == "NT_ROW_MAJOR"
    assert layout(replace(LARGE, d_major="m")) == "TN_COL_MAJOR"
    assert layout(replace(LARGE, b_major="mn")) == "NN_ROW_MAJOR"
    assert layout(replace(LARGE, a_major="mn", d_major="m")) == "NN_COL_MAJOR"
