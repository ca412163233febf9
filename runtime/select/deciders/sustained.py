"""For programs that run for seconds: the kernel that is the fastest under the power limit, where that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import RUNNERS_UP, Choice, Rows
from gemmill.runtime.select.cost.sustained import HELD, law_of, least_us, power_us
from gemmill.runtime.select.deciders.measurements import ByMeasurement
from gemmill.runtime.select.deciders.model import ByModel, chosen, fastest

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Integers

NEAR = 1.2
"""How far behind the fastest lone launch a kernel may be by the model: what was measured was within it."""
LONG_US = 1000.0
"""A lone launch of groups or slots that takes so long is held by the power limit as a long run is: of groups in bf16,
those of 1.6 to 4 ms were 1 to 5% faster by the kernel for a long run, those of 0.7 and 0.8 ms were not (H200,
docs/performance/layouts.md, "Groups"). Of matrices trees know as much."""


class UnderPower:
    """Decides on problems that the power limit holds, on all SMs, where a law was fitted to such.

    Args:
        model: what says how long lone launches take.
        measured: what measurements say, of which those that were given come first.
        gpu: where.
    """

    def __init__(self, model: ByModel, measured: ByMeasurement, gpu: Gpu) -> None:
        self._model, self._measured, self._gpu = model, measured, gpu

    def decide(
        self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool
    ) -> Choice | None:
        """The kernel that is the fastest in a long run; None where power does not hold it, nobody measured such, or
        measurements of the problem were given.

        Raises:
            UnsupportedProblemError: no kernel serves the problem.
        """
        if (sm_count, invariant_to, quick) != (None, None, False) or self._measured.was_given(problem):
            return None
        law, gpu = law_of(problem, self._gpu), self._gpu
        if law is None or 0 in (problem.m, problem.n, problem.k, problem.batch):
            return None
        own = problem.typical()
        limit = power_us(own, gpu)
        if limit < HELD * least_us(own, gpu):
            return None
        group, serving, figures = self._model.asked(problem, None)
        alone = figures.us.take(serving)
        least = alone.min()
        if limit < HELD * least:
            return None
        near: Integers = serving[alone <= NEAR * least]
        us = np.full(figures.us.size, np.inf)
        us[near] = law.us(figures.us.take(near), limit, group.table.moved.take(near), own)
        figures = figures._replace(us=us)
        ranked = fastest(group, near, figures, 1 + RUNNERS_UP)
        joules = law.watts * float(us[ranked[0]]) / 1e6
        why = f"in a long run, which the power limit holds at {law.watts:.0f} W, {joules:.3g} J a launch: "
        return chosen(group, ranked, figures, problem, gpu, why)


class OfLongGroups:
    """Decides on lone launches of groups and slots that are as long as :data:`LONG_US`.

    Args:
        under_power: what decides on long runs.
    """

    def __init__(self, under_power: UnderPower) -> None:
        self._under_power = under_power

    def decide(
        self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool
    ) -> Choice | None:
        """The kernel for a long run; None for matrices, and where that takes less.

        Raises:
            UnsupportedProblemError: no kernel serves the problem.
        """
        if problem.batching == "strided":
            return None
        choice = self._under_power.decide(problem, sm_count, invariant_to, quick)
        return choice if choice is not None and choice.predicted_us >= LONG_US else None
