"""The selector: which kernel a problem goes to, and why. It asks its deciders in turn; the first that names a kernel is
heard: measurements that were given, the law of sustained load, measurements that ship, for quick selection a decision
tree, and the model, which for a batch-invariant choice looks at every M.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from math import inf

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.launched import numbered
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem, Regime
from gemmill.runtime.select.choice import Candidate, Choice, Rows
from gemmill.runtime.select.deciders.decider import Decider
from gemmill.runtime.select.deciders.invariant import ForAnyRows
from gemmill.runtime.select.deciders.measurements import ByMeasurement
from gemmill.runtime.select.deciders.model import ByModel, ForNothing
from gemmill.runtime.select.deciders.quick import ByDecisionTree
from gemmill.runtime.select.deciders.sustained import OfLongGroups, UnderPower
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.kernels.groups import Kernels
from gemmill.runtime.select.slow_path import SlowPath, slow_path

_CACHED = 4096
"""Problems whose choice is remembered."""


class Selector:
    """Chooses among a fixed set of kernels on one GPU.

    Args:
        configs: the kernels by name.
        gpu: the GPU's figures.
        decisions: measured times; those of other GPUs and of kernels that are not here are passed over. Problems
            without any have those that ship (runtime/select/measured.py).
        varies: whether kernels of the set may also be taken with the epilogue of a problem, and with other types,
            which some kernel of it has, be it for other majors: C and D as asked, A and B in place of types alike.
            Whoever asks must be able to compile them.
    """

    def __init__(
        self,
        configs: Mapping[str, GemmConfig],
        gpu: Gpu,
        decisions: Iterable[Decision] = (),
        *,
        varies: bool = False,
    ) -> None:
        self.gpu = gpu
        self.configs = configs = numbered(configs)
        """The kernels by name: those whose launch says in how many slices K goes, once for each number."""
        kernels = Kernels(configs, gpu, varies)
        self._measured = ByMeasurement(kernels, gpu, decisions)
        self._model = ByModel(kernels, gpu)
        self._invariant = ForAnyRows(kernels, gpu)
        self._under_power = UnderPower(self._model, self._measured, gpu)
        alone: tuple[Decider, ...] = (
            self._measured,
            ByDecisionTree(kernels, gpu),
            ForNothing(kernels),
            self._invariant,
        )
        self._deciders: Mapping[Regime, tuple[Decider, ...]] = {
            "burst": (OfLongGroups(self._under_power), *alone),
            "sustained": (self._under_power, *alone),
        }
        self.select = lru_cache(_CACHED)(self._select)
        """The kernel for a problem; see :meth:`_select`."""

    def _select(
        self,
        problem: GemmProblem,
        sm_count: int | None = None,
        invariant_to: Rows | None = None,
        quick: bool = False,
        objective: Regime = "sustained",
    ) -> Choice:
        """The kernel for a problem, on at most ``sm_count`` SMs. Measured times are of all SMs, and only count there.

        ``invariant_to`` names the extent, the caller's M, that the kernel must not depend on; nor does it on the batch.
        ``quick`` has a decision tree decide where there is one for a problem without either, in place of the model.
        With the ``objective`` ``burst``, or any of these three, it is the fastest for a lone launch.

        Raises:
            UnsupportedProblemError: no kernel serves it; names the constraint and the nearest kernel.
        """
        sm_count = self._bound(sm_count)
        for decider in self._deciders[objective]:
            if (choice := decider.decide(problem, sm_count, invariant_to, quick)) is not None:
                break
        else:
            choice = self._model.decide(problem, sm_count, invariant_to, quick)
        return choice.answering(problem, self._slow_path(choice, problem, sm_count, invariant_to))

    def under_power(self, problem: GemmProblem) -> Choice | None:
        """The kernel for a long run, with the next best ones, where the power limit holds the problem and no
        measurements of it were given; None elsewhere.

        Raises:
            UnsupportedProblemError: no kernel serves it.
        """
        return self._under_power.decide(problem, None, None, False)

    def _slow_path(
        self, choice: Choice, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None
    ) -> SlowPath | None:
        """What a problem loses to one like it, by the model whoever decided."""
        if choice.source == "quick" or 0 in (problem.m, problem.n, problem.k, problem.batch):
            return None

        def us(other: GemmProblem, invariant: bool) -> float:
            if not invariant or invariant_to is None:
                return self._model.least_us(other, sm_count)
            with suppress(UnsupportedProblemError):
                if (found := self._invariant.decide(other, sm_count, invariant_to)) is not None:
                    return found.predicted_us
            return inf

        return slow_path(problem, choice.config, invariant_to is not None, us)

    def candidates(self, problem: GemmProblem, count: int, sm_count: int | None = None) -> list[Candidate]:
        """The best kernels for a problem whose D is not empty, at most ``count``, the best first: those measured, then
        by the model.

        Raises:
            UnsupportedProblemError: no kernel serves it.
        """
        sm_count = self._bound(sm_count)
        found = [] if sm_count is not None else self._measured.candidates(problem)
        found += self._model.candidates(problem, count, sm_count)
        first: dict[str, Candidate] = {}
        for candidate in found:
            first.setdefault(candidate.name, candidate)
        return [*first.values()][:count]

    def measured_on(self, problem: GemmProblem) -> list[tuple[float, str]]:
        """Microseconds measured on a problem, and kernels, the fastest first: those given or, where there are none,
        those that ship."""
        return self._measured.times(problem)

    def times(self, problem: GemmProblem) -> dict[str, float]:
        """Microseconds that the model says of the kernels that serve a problem; none where no kernel does."""
        return self._model.times(problem)

    def _bound(self, sm_count: int | None) -> int | None:
        """A number of SMs, or None where it is no bound."""
        if sm_count is not None and (type(sm_count) is not int or sm_count < 1):
            raise UnsupportedProblemError(f"sm_count is {sm_count!r}; it must be an integer of at least 1")
        return None if sm_count is None or sm_count >= self.gpu.sms else sm_count
