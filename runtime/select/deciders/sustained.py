"""For programs that run for seconds: the kernel that is the fastest under the power limit, where that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import RUNNERS_UP, Choice
from gemmill.runtime.select.cost.model import estimate
from gemmill.runtime.select.cost.sustained import HELD, Moved, law_of, power_us
from gemmill.runtime.select.deciders.model import chosen, fastest
from gemmill.runtime.select.kernels.groups import Kernels

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Integers

NEAR = 1.2
"""How far behind the fastest lone launch a kernel may be by the model: what was measured was within it."""


class UnderPower:
    """Decides on problems that the power limit holds, on all SMs, where a law was fitted to such.

    Args:
        kernels: the kernels that there are.
        gpu: where.
    """

    def __init__(self, kernels: Kernels, gpu: Gpu) -> None:
        self._kernels, self._gpu = kernels, gpu

    def decide(self, problem: GemmProblem) -> Choice | None:
        """The kernel that is the fastest in a long run; None where power does not hold it, or nobody measured."""
        law, gpu = law_of(problem, self._gpu), self._gpu
        if law is None or 0 in (problem.m, problem.n, problem.k, problem.batch):
            return None
        if (served := self._kernels.find(problem, None)) is None:
            return None
        group, serving = served
        figures = estimate(group.table, problem, gpu, serving)
        least, limit = figures.us[serving].min(), power_us(problem, gpu)
        if limit < HELD * least:
            return None
        near: Integers = serving[figures.us[serving] <= NEAR * least]
        moved = Moved.of(group.table, DTYPES[problem.a_dtype].bits / 8)
        us = np.full_like(figures.us, np.inf)
        us[near] = law.us(figures.us[near], limit, moved.take(near))
        ranked = fastest(group, near, figures._replace(us=us), 1 + RUNNERS_UP)
        why = "in a long run, which the power limit holds: "
        return chosen(group, ranked, figures._replace(us=us), problem, gpu, why)
