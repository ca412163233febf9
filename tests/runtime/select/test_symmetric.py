"""The choice of kernels for a symmetric D, by the model of an H200."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.cost.symmetric import triangle

registry = Registry(gpu="H200")


@given(st.integers(1, 3000), st.sampled_from((64, 128, 192, 256)), st.sampled_from((64, 136, 256)))
def test_tiles_of_a_triangle_are_those_that_meet_it(extent: int, rows: int, columns: int) -> None:
    starts = [(i, j) for i in range(0, extent, rows) for j in range(0, extent, columns)]
    assert triangle(np.array([[rows], [columns]]), extent) == sum(j < min(i + rows, extent) for i, j in starts)


def test_a_triangle_of_the_most_rows_is_counted_at_once() -> None:
    assert triangle(np.array([[128], [256]]), 2**31 - 1) == 2**46 + 2**23


@pytest.mark.slow
@pytest.mark.parametrize("rows", [4096, 8192])
@pytest.mark.parametrize("formats", ["bf16 tn", "f16 nt", "bf16 tt"])
def test_large_ones_are_multiplied_by_half(rows: int, formats: str) -> None:
    line = f"{rows}x{rows}x4096 {formats}"
    half, whole = (registry.select(GemmProblem.from_text(text)) for text in (f"{line} symmetry=symmetric", line))
    assert half.config.scheduler.symmetry == "symmetric"
    assert not half.swap_ab
    assert half.predicted_us < whole.predicted_us / 1.2


@pytest.mark.slow
@pytest.mark.parametrize("line", ["256x256x4096 bf16 tn", "4096x4096x4096 f32 tn", "4096x4096x4096 bf16 tn d=f32"])
def test_small_ones_and_other_types_are_multiplied_whole(line: str) -> None:
    choice = registry.select(GemmProblem.from_text(f"{line} symmetry=symmetric"))
    assert choice.config.scheduler.symmetry == "general"


@pytest.mark.slow
def test_kernels_of_half_are_not_chosen_without_the_guarantee() -> None:
    problem = GemmProblem(m=4096, n=4096, k=4096)
    names = {candidate.kernel.name for candidate in registry.selector.candidates(problem, 500)}
    assert names
    assert not any("symmetric" in name for name in names)
