"""Choosers without a model of a GPU: chance, the largest tile, and one kernel for each type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import ceil
from random import Random

from benchmarks.choosers.cases import Answer, Case, Chooser, KernelProperties, Measured, nearest, type_of

from gemmill.runtime.select.gpus import figures

KERNELS, CASES = 24, 200
"""Most kernels and problems of a type that the single kernel is sought among and judged on."""


def by_chance(case: Case) -> Answer:
    """A candidate at random, always the same for a problem."""
    return Random(str(case.problem)).choice(sorted(case.kernels))


def largest_tile(case: Case) -> Answer:
    """The candidate with the largest tile of which there is one for each SM, counting slices of K; if there is none,
    that with the most tiles. Of equal tiles, that with fewer slices, then the squarer one, then the first by name."""
    problem, sms = case.problem, figures(case.gpu).sms

    def rank(name: str) -> tuple[int, int, int, int, str]:
        kernel = case.kernels[name]
        m, n, _ = kernel.tile
        tiles = ceil(problem.m / m) * ceil(problem.n / n) * problem.batch * kernel.slices
        return -min(tiles, sms), -m * n, kernel.slices, max(m, n), name

    return min(case.kernels, key=rank)


def one_kernel(fitted: Sequence[Measured]) -> Chooser:
    """A chooser that takes one kernel for each type and regime: of those that were fastest most often on the problems
    that gemmill's model was fitted to, the one whose nearest candidates have the least mean regret there."""
    groups: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for measured in fitted:
        groups[measured.type, measured.case.regime].append(measured)
    best = {key: _best(cases) for key, cases in groups.items()}

    def choose(case: Case) -> Answer:
        return best.get((type_of(case.problem), case.regime))

    return choose


def _best(cases: Sequence[Measured]) -> KernelProperties:
    """The properties of the kernel with the least mean regret on some of the problems of a type."""
    wins = Counter(measured.case.kernels[measured.fastest].properties for measured in cases)
    some = cases[:: ceil(len(cases) / CASES)]

    def regret(wanted: KernelProperties) -> float:
        return sum(measured.regret(nearest(wanted, measured.case.kernels)[0]) for measured in some)

    return min((wanted for wanted, _ in wins.most_common(KERNELS)), key=regret)
