"""Batch-invariant: one kernel for every M, and an order of sums that depends on nothing but K."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import RUNNERS_UP, Choice, Rows
from gemmill.runtime.select.cost.model import estimate
from gemmill.runtime.select.deciders.model import chosen
from gemmill.runtime.select.gpus import with_at_most
from gemmill.runtime.select.kernels.groups import Kernels

TYPICAL_ROWS = (1, 16, 128, 1024, 8192)
"""Rows, M, that the choice is made for: from one token to a long prompt."""
_CACHED = 4096
"""Problems whose ranking is remembered."""


class ForAnyRows:
    """Decides where the kernel must depend on neither the caller's M nor the batch.

    Args:
        kernels: the kernels that there are.
        gpu: where.
    """

    def __init__(self, kernels: Kernels, gpu: Gpu) -> None:
        self._kernels, self._gpu = kernels, gpu
        self._ranked = lru_cache(_CACHED)(self._rank)

    def decide(
        self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool = False
    ) -> Choice | None:
        """The kernel for problems that differ in M and batch alone, with its time for this one.

        Raises:
            UnsupportedProblemError: no kernel serves the problem, or none whatever M.
        """
        if invariant_to is None:
            return None
        group, _ = self._kernels.serving(problem, sm_count)
        ranked = self._ranked(_with_rows(problem, invariant_to, 1), sm_count, invariant_to)
        gpu = with_at_most(self._gpu, sm_count)
        why = (
            "batch-invariant: of the kernels in which one CTA sums all of K, the one with the least geometric mean "
            f"of times over M = {', '.join(map(str, TYPICAL_ROWS))}; here "
        )
        return chosen(group, ranked, estimate(group.table, problem, gpu, np.array(ranked)), problem, gpu, why)

    def _rank(self, alike: GemmProblem, sm_count: int | None, rows: Rows) -> list[int]:
        """The best kernels whatever M and batch, as indices.

        In the order of the geometric mean of their times over :data:`TYPICAL_ROWS`. Kernels that share K between CTAs
        stand back: stream-K shares it as M has it, and the workspaces of the others grow with M.
        """
        gpu = with_at_most(self._gpu, sm_count)
        group, serving = self._kernels.serving(alike, sm_count)
        problems = [_with_rows(alike, rows, m) for m in TYPICAL_ROWS]
        means = np.sum([np.log(estimate(group.table, problem, gpu, serving).us) for problem in problems], axis=0)
        ranked = sorted((float(means[i]), i) for i in serving.tolist() if sums_in_one_cta(group.configs[i]))
        if not ranked:
            raise UnsupportedProblemError(
                f"no kernel serves {alike} whatever M: all {serving.size} that would share K between CTAs "
                "(docs/kernels.md); leave out batch_invariant"
            )
        return group.first((i for _, i in ranked), 1 + RUNNERS_UP)


def sums_in_one_cta(config: GemmConfig) -> bool:
    """Whether one CTA sums all of K of an element, so that the order depends on nothing but K."""
    return decomposition_of(config).is_data_parallel


def _with_rows(problem: GemmProblem, rows: Rows, m: int) -> GemmProblem:
    """One matrix of a problem, of so many of the caller's rows; a slot is full."""
    if rows == "n":
        return problem.but(batch=1, n=m)
    return problem.but(batch=1, m=m, expected_rows=m if problem.batching == "masked" else None)
