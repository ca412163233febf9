"""By the model: the kernel that it says is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.launched import is_open, numbered
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import RUNNERS_UP, Candidate, Choice, Rows, in_words
from gemmill.runtime.select.cost.decompositions import cluster_k
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.model import estimate
from gemmill.runtime.select.cost.roofline import BOUNDS, Estimate
from gemmill.runtime.select.gpus import with_at_most
from gemmill.runtime.select.kernels.groups import Group, Kernels

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Integers


class ByModel:
    """Decides on every problem that some kernel serves.

    Args:
        kernels: the kernels that there are.
        gpu: where.
    """

    def __init__(self, kernels: Kernels, gpu: Gpu) -> None:
        self._kernels, self._gpu = kernels, gpu
        self.asked = lru_cache(1)(self._asked)
        """The kernels for a problem, those of them that serve it, and what the model says; the last is kept, for who
        asks before :meth:`decide`."""

    def decide(self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool) -> Choice:
        """The kernel that the model says is the fastest.

        Raises:
            UnsupportedProblemError: no kernel serves the problem.
        """
        group, serving, figures = self.asked(problem, sm_count)
        ranked = fastest(group, serving, figures, 1 + RUNNERS_UP)
        return chosen(group, ranked, figures, problem, with_at_most(self._gpu, sm_count))

    def candidates(self, problem: GemmProblem, count: int, sm_count: int | None) -> list[Candidate]:
        """The best kernels for a problem whose D is not empty, at most ``count``, the best first."""
        group, serving, figures = self.asked(problem, sm_count)
        ranked = fastest(group, serving, figures, count)
        return [Candidate(group.names[i], bool(group.table.swap_ab[i]), float(figures.us[i])) for i in ranked]

    def times(self, problem: GemmProblem) -> dict[str, float]:
        """Microseconds of the kernels that serve a problem; none where no kernel does."""
        found: dict[str, float] = {}
        if served := self._kernels.find(problem, None):
            group, serving = served
            us = estimate(group.table, problem, self._gpu, serving).us
            for i in serving.tolist():
                found[group.names[i]] = min(float(us[i]), found.get(group.names[i], float("inf")))
        return found

    def least_us(self, problem: GemmProblem, sm_count: int | None) -> float:
        """Microseconds of the fastest kernel for a problem whose D is not empty; infinity where none serves it."""
        if self._kernels.find(problem, sm_count) is None:
            return inf
        _, serving, figures = self.asked(problem, sm_count)
        return float(figures.us[serving].min())

    def _asked(self, problem: GemmProblem, sm_count: int | None) -> tuple[Group, Integers, Estimate]:
        group, serving = self._kernels.serving(problem, sm_count)
        return group, serving, estimate(group.table, problem, with_at_most(self._gpu, sm_count), serving)


class ForNothing:
    """Decides where there is nothing to compute: any kernel that serves the problem will do.

    Args:
        kernels: the kernels that there are.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def decide(
        self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool
    ) -> Choice | None:
        """The first of the kernels for a problem whose D is empty.

        Raises:
            UnsupportedProblemError: no kernel serves the problem.
        """
        if min(problem.m, problem.n, problem.batch) != 0:
            return None
        group, serving = self._kernels.serving(problem, sm_count)
        first = serving[0]
        swap_ab = bool(group.table.swap_ab[first])
        return Choice(
            group.names[first], group.configs[first], "there is nothing to compute", 0.0, (), "model", swap_ab
        )


def with_number(config: GemmConfig, problem: GemmProblem, swap_ab: bool, gpu: Gpu) -> GemmConfig:
    """A kernel that serves a problem whose D is not empty, or its transpose, in as many slices of K as the model says
    is best where its launch says the number and it is yet to be said."""
    if not is_open(config):
        return config
    group = Group.of(numbered({"": config}), swap_ab)
    return group.configs[int(estimate(group.table, problem.but(k=max(problem.k, 1)), gpu).us.argmin())]


def fastest(group: Group, serving: Integers, figures: Estimate, count: int) -> list[int]:
    """The fastest of some kernels by the model, each once, as indices.

    Of equal predictions the first wins, everywhere: the first family, the problem as it is, exact formats, then
    names, in order.
    """
    return group.first(serving[figures.us.take(serving).argsort(kind="stable")[: 2 * count]].tolist(), count)


def chosen(
    group: Group, ranked: Sequence[int], figures: Estimate, problem: GemmProblem, gpu: Gpu, why: str = ""
) -> Choice:
    """A choice by the model of the first of some kernels, the others its runners-up; ``why`` begins its reason."""
    best, *others = ranked
    config, swap_ab = group.configs[best], bool(group.table.swap_ab[best])
    reason = why + _reason(config, figures, best, problem, gpu) + in_words(config, problem, swap_ab)
    runners_up = tuple((group.names[i], float(figures.us[i])) for i in others)
    return Choice(group.names[best], config, reason, float(figures.us[best]), runners_up, "model", swap_ab)


def _reason(config: GemmConfig, figures: Estimate, index: int, problem: GemmProblem, gpu: Gpu) -> str:
    us, along_k = float(figures.us[index]), cluster_k(config)
    splits = config.scheduler.splits // along_k
    tiles, waves = int(figures.tiles[index]) // splits, int(figures.waves[index])
    clusters = f"in clusters of {config.cluster.m}x{config.cluster.n}"
    if along_k > 1:
        clusters = f"in clusters of {along_k} CTAs that share K"
    elif splits > 1:
        clusters = f"with K split {splits} ways, {clusters}"
    bounds = (FAMILIES[config.family].multiplies_by, *BOUNDS[1:])
    rate = f"{problem.expected_flops / us / 1e6:.0f} TFLOP/s by the model"
    if problem.batching == "masked":
        rate += f", with {problem.typical().m} rows of a slot in use"
    return (
        f"{tiles} tile{'s'[: tiles > 1]} of {config.tile.m}x{config.tile.n} {clusters} take "
        f"{waves} wave{'s'[: waves > 1]} on {gpu.sms} SMs ({figures.utilisation[index]:.0%} of them useful), bound by "
        f"{bounds[int(figures.bound[index])]}: {us:.1f} us, {rate}"
    )
