"""The choice of the kernels of a pack for a suite of shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gemmill.cli.kernel_sets import KernelSets, warn_unsupported
from gemmill.library.problem import GemmProblem
from gemmill.profiler.sweep.shape_suites import ShapeSuite
from gemmill.runtime.pack_choice import Conditions, PackChoice, kernels_for, supported


def chosen_for(sets: KernelSets, suite: ShapeSuite, under: Conditions) -> tuple[PackChoice, Mapping[GemmProblem, int]]:
    """Choose the kernels of a pack for a suite. Lists on stderr the shapes that no kernel supports.

    Args:
        sets: the kernels to choose from.
        suite: the problems, with counts.
        under: what times are predicted for, and the slowdown.

    Returns:
        The choice, and how often each problem of the suite ran or is listed.

    Raises:
        UnsupportedProblemError: no kernel supports any problem of the suite.
    """
    problems = {shape: sets.problems_of(shape) for shape in suite.shapes}
    rows = supported((problem for listed in problems.values() for problem in listed), under)
    counts: Counter[GemmProblem] = Counter()
    for shape, listed in problems.items():
        counts.update(dict.fromkeys(filter(rows.__contains__, listed), suite.counts.get(shape, 1)))
    if missing := [shape for shape, listed in problems.items() if rows.keys().isdisjoint(listed)]:
        warn_unsupported(missing, suite, sets, under.bits)
    return kernels_for(rows, counts, under), counts
