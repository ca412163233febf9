"""A tile in place of a kernel, in our words and in those of CuTe DSL's example."""

from __future__ import annotations

import importlib.util

import pytest
from tests.cli.test_cli import gemmill

from gemmill import GemmProblem
from gemmill.cli.dsl import kernels_of
from gemmill.library.errors import UnsupportedProblemError

EXAMPLE = (
    *("bench", "--mnkl", "8192,8192,8192,1", "--tile_shape_mnk", "128,256,64", "--cluster_shape_mn", "1,1"),
    *("--a_dtype", "Float16", "--b_dtype", "Float16", "--c_dtype=Float16", "--acc_dtype", "Float32"),
    *("--a_major", "k", "--b_major", "k", "--c_major", "n"),
)


def test_kernels_of_a_tile_have_the_formats_of_the_problem() -> None:
    problem = GemmProblem(m=300, n=300, k=64, a="e4m3", d="f16", c="f16")
    configs = [*kernels_of(problem, (128, 96, 128), (2, 1)).expand()]
    assert {config.schedule for config in configs} == {"cooperative", "pingpong"}
    told = {(x.a.dtype, x.c and x.c.dtype, x.d.dtype, x.tile.m, x.tile.n, x.tile.k, x.cluster.m) for x in configs}
    assert told == {("e4m3", "f16", "f16", 128, 96, 128, 2)}


def test_a_tile_that_cannot_be_is_refused_by_its_rule() -> None:
    with pytest.raises(
        UnsupportedProblemError, match=r"no legal kernel has the tile 256x256x64: .*registers per thread"
    ):
        kernels_of(GemmProblem(m=300, n=300, k=64, a="bf16"), (256, 256, 64), (1, 1))


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="would run, where there is a GPU")
def test_the_example_s_options_are_read_to_the_end() -> None:
    """All that is missing is a GPU; a word more is an error of the command line."""
    result = gemmill(*EXAMPLE)
    assert (result.exit_code, "there is no GPU to run kernels on" in result.output) == (3, True)
    assert "No such option: --d_dtype" in gemmill(*EXAMPLE, "--d_dtype", "Float16").output
    assert "--cluster needs --tile" in gemmill("bench", "--mnkl", "64,64,64", "--cluster_shape_mn", "2,1").output
    assert "'128,256' must be 3 numbers" in gemmill("bench", "--mnkl", "64,64,64", "--tile", "128,256").output
