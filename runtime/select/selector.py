"""The selector: picks the kernel for a problem and gives the reason. It takes the fastest of the measured rows of the
problem; where there are none, the kernel with the least time by the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.bits import kernels_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel, check_slices, in_each_number
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem, Regime
from gemmill.runtime.select import slow_path
from gemmill.runtime.select.choice import RUNNERS_UP, Candidate, Choice, RunnersUp, in_words
from gemmill.runtime.select.cost import model
from gemmill.runtime.select.cost.energy import (
    AS_FAST,
    HELD,
    NEAR,
    THRIFTY,
    energy_of,
    least_us,
    padding,
    power_us,
    sustained_us,
    thriftiest,
)
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import with_at_most
from gemmill.runtime.select.kernels.faults import is_swapped, runs_transposed
from gemmill.runtime.select.kernels.tables import Keep, Kernels
from gemmill.runtime.select.measured_rows import MeasuredRows, Times
from gemmill.runtime.select.model_file import model_of

if TYPE_CHECKING:
    from gemmill.library.arithmetic import Arithmetic
    from gemmill.runtime.select.cost.arrays import Columns, Floats, Integers

_Times = tuple["FeatureTable", "Integers | None", "Floats"]
"""A table, the indices of its kernels to choose from (None for all), and microseconds of each."""
_CACHED = 4096
"""Most problems whose choice is cached."""
LONG_US = 1000.0
"""Least microseconds of a burst of groups for which the power limit applies as under sustained load. On an H200, bf16
groups of 1.6 to 4 ms were 1 to 5% faster with the kernel for sustained load; groups of 0.7 and 0.8 ms were not. For
single matrices, the network includes this effect."""


class Selector:
    """Selects among a fixed set of kernels on one GPU.

    Args:
        configs: the kernels by name.
        gpu: properties of the GPU.
        decisions: measured times; those of other GPUs and of unavailable kernels are ignored. For problems without any,
            the selector uses the shipped ones.
        varies: whether kernels of the set may also be used with the epilogue of a problem and with other types: any C
            and D, and compatible types of A and B. Some kernel must have the types, though possibly with other majors.
            The caller must be able to compile the variations.
        keep: caches tables of the kernels in a store; None: no cache.
    """

    def __init__(
        self,
        configs: Mapping[str, GemmConfig],
        gpu: Gpu,
        decisions: Iterable[Decision] = (),
        *,
        varies: bool = False,
        keep: Keep | None = None,
    ) -> None:
        self.gpu = gpu
        self.configs = configs
        """The kernels by name."""
        gpu_model = model_of(gpu.name, gpu.model)
        self._energies = gpu_model.energies if gpu_model else {}
        self._kernels = Kernels(configs, gpu, varies, gpu_model.network if gpu_model else None, keep)
        self._measured = MeasuredRows(self._kernels, gpu, gpu_model, decisions)
        self._times = lru_cache(1)(self._model_times)
        """Caches one result, with which advice on slow paths begins."""
        self.select = lru_cache(_CACHED)(self._select)
        """The kernel for a problem; see :meth:`_select`."""

    def _select(
        self,
        problem: GemmProblem,
        sm_count: int | None = None,
        arithmetic: Arithmetic | None = None,
        objective: Regime = "sustained",
    ) -> Choice:
        """Return the kernel for a problem, on at most ``sm_count`` SMs. Measured times count only for all SMs.

        With ``arithmetic``, it is the fastest of the kernels that have it. With ``sm_count``, or with the ``objective``
        ``burst``, it is the kernel that is fastest in a single launch.

        Raises:
            UnsupportedProblemError: no kernel supports it; names the constraint and the nearest kernel.
        """
        sm_count = self._bound(sm_count)
        if min(problem.m, problem.n, problem.k, problem.batch) == 0:
            return self._choice_of_empty(problem, sm_count, arithmetic).answering(problem, None, arithmetic)
        saves_energy = objective == "sustained" and problem.batching == "strided"
        if sm_count is not None:
            choice = self._fastest(problem, sm_count, arithmetic)
        elif rows := self._measured.rows_of_caller(problem, arithmetic):
            choice = self._measured.choice(problem, rows, saves_energy)
        elif sustained := self._under_power(problem, objective, arithmetic):
            choice = sustained
        elif rows := self._measured.rows_that_ship(problem, arithmetic):
            choice = self._measured.choice(problem, rows, saves_energy)
        else:
            choice = self._fastest(problem, None, arithmetic, saves_energy)
        if choice.config.scheduler.symmetry != problem.symmetry:  # rows of all of D may be measured
            choice = self.select(problem.but(symmetry="general"), sm_count, arithmetic, objective)
        return choice.answering(problem, self._slow_path(choice, problem, sm_count, arithmetic), arithmetic)

    def under_power(
        self, problem: GemmProblem, objective: Regime = "sustained", arithmetic: Arithmetic | None = None
    ) -> Choice | None:
        """Return the kernel under the power limit with its runners-up, where that limit applies to the problem and the
        caller gave no measurements of it; None elsewhere.

        Raises:
            UnsupportedProblemError: no kernel supports it.
        """
        if self._is_empty_or_measured(problem, arithmetic):
            return None
        return self._under_power(problem, objective, arithmetic)

    def times_under_power(
        self, problem: GemmProblem, objective: Regime = "sustained", arithmetic: Arithmetic | None = None
    ) -> dict[SlicedKernel, float] | None:
        """Return the predicted microseconds of the kernels among which :meth:`under_power` selects; None where it
        returns None.

        Raises:
            UnsupportedProblemError: no kernel supports the problem.
        """
        if self._is_empty_or_measured(problem, arithmetic):
            return None
        found = self._times_under_power(problem, objective, arithmetic)
        return found and _fastest_of_each(*found)

    def candidates(
        self, problem: GemmProblem, count: int, sm_count: int | None = None, arithmetic: Arithmetic | None = None
    ) -> list[Candidate]:
        """Return the ``count`` best kernels for a problem with a D that is not empty, the best first: the measured
        ones, then by the model. With ``arithmetic``, only kernels that have it.

        Raises:
            UnsupportedProblemError: no kernel supports it.
        """
        sm_count = self._bound(sm_count)
        first: dict[SlicedKernel, Candidate] = {}
        if sm_count is None:
            for us, kernel in self._measured.times(problem, arithmetic):
                first[kernel] = Candidate(kernel, runs_transposed(self._measured.config(kernel.name), problem), us)
        table, serving, work = self._times(problem, sm_count, arithmetic)
        for i in _ranked(table, serving, work["us"], count):
            candidate = Candidate(table.kernels[i], bool(table.swap_ab[i]), float(work["us"][i]))
            first.setdefault(candidate.kernel, candidate)
        return [*first.values()][:count]

    def measured_on(self, problem: GemmProblem, arithmetic: Arithmetic | None = None) -> Times:
        """Return the measured microseconds and kernels of a problem, the fastest first: the caller's or, where there
        are none, the shipped ones. With ``arithmetic``, only kernels that have it."""
        return self._measured.times(problem, arithmetic)

    def times(self, problem: GemmProblem, arithmetic: Arithmetic | None = None) -> dict[SlicedKernel, float]:
        """Return the predicted microseconds of the kernels that support a problem; empty where none does. With
        ``arithmetic``, only kernels that have it."""
        if not self._kernels.find(problem, None, arithmetic):
            return {}
        table, serving, work = self._times(problem, None, arithmetic)
        return _fastest_of_each(table, serving, work["us"])

    def _is_empty_or_measured(self, problem: GemmProblem, arithmetic: Arithmetic | None) -> bool:
        """Whether there is nothing to compute, or the caller gave measurements of a problem."""
        is_empty = min(problem.m, problem.n, problem.k, problem.batch) == 0
        return is_empty or bool(self._measured.rows_of_caller(problem, arithmetic))

    def _model_times(
        self, problem: GemmProblem, sm_count: int | None, arithmetic: Arithmetic | None
    ) -> tuple[FeatureTable, Integers | None, Columns]:
        """Return the kernels for a problem, those that support it, and the model's prediction."""
        table, serving = self._kernels.serving(problem, sm_count, arithmetic)
        return table, serving, model.times(table, problem, with_at_most(self.gpu, sm_count), serving)

    def _fastest(
        self,
        problem: GemmProblem,
        sm_count: int | None,
        arithmetic: Arithmetic | None,
        saves_energy: bool = False,
    ) -> Choice:
        """Return the kernel with the least predicted time; to save energy, one that is about as fast."""

        def times() -> _Times:
            table, serving, work = self._times(problem, sm_count, arithmetic)
            return table, serving, work["us"]

        return self._choice_of_least_time(times, times(), problem, sm_count, saves_energy=saves_energy)

    def _under_power(self, problem: GemmProblem, objective: Regime, arithmetic: Arithmetic | None) -> Choice | None:
        """Return the kernel with the least predicted time under sustained load, where the power limit applies to the
        problem."""

        def times() -> _Times | None:
            return self._times_under_power(problem, objective, arithmetic)

        energy, times_of_kernels = energy_of(problem, self._energies), times()
        if energy is None or times_of_kernels is None:
            return None
        joules = energy["watts"] * times_of_kernels[2].min() / 1e6
        why = f"under sustained load, at the power limit of {energy['watts']:.0f} W ({joules:.3g} J per launch): "
        return self._choice_of_least_time(times, times_of_kernels, problem, None, why)

    def _times_under_power(
        self, problem: GemmProblem, objective: Regime, arithmetic: Arithmetic | None
    ) -> _Times | None:
        """Return the predicted times under sustained load of the kernels that are nearly the fastest in a burst, where
        the power limit applies to the problem."""
        if objective == "burst" and problem.batching == "strided":
            return None
        if (energy := energy_of(problem, self._energies)) is None:
            return None
        typical = problem.typical()
        limit_us = power_us(typical, self.gpu)
        if limit_us < HELD * least_us(typical, self.gpu):
            return None
        table, serving, work = self._times(problem, None, arithmetic)
        candidates = model.within(NEAR, work["us"], serving)
        hidden_us = work["hidden_ns"].take(candidates) / 1000 if "hidden_ns" in work else 0.0
        burst_us, analytic_us = (work[name].take(candidates) - hidden_us for name in ("us", "analytic_us"))
        if limit_us < HELD * burst_us.min():
            return None
        us = np.full(work["us"].size, inf)
        us[candidates] = sustained_us(energy, burst_us, analytic_us, table, typical, self.gpu, candidates)
        if objective == "burst" and us.min() < LONG_US:  # it ends before the limit applies
            return None
        return table, candidates, us

    def _choice_of_least_time(
        self,
        times: Callable[[], _Times | None],
        times_of_kernels: _Times,
        problem: GemmProblem,
        sm_count: int | None,
        why: str = "",
        saves_energy: bool = False,
    ) -> Choice:
        """Return the kernel with the least time; to save energy, one that is about as fast. ``times`` computes them
        again for its runners-up."""
        table, members, us = times_of_kernels

        def rank() -> RunnersUp:
            recomputed = times()
            assert recomputed
            return _runners_up(table, best, _ranked(*recomputed, 1 + RUNNERS_UP), recomputed[2])

        best = fastest = int(us.argmin() if members is None else members[us.take(members).argmin()])
        if saves_energy:
            tile, symmetric = table.columns["tile"], table.columns["symmetric"]
            near = model.within(AS_FAST, us, members)
            covered = padding(tile.take(near, 1), table.side.take(near, 1), symmetric.take(near), problem)
            best = int(near[thriftiest(us.take(near), covered)])
        why = why if best == fastest else THRIFTY
        return self._choice(table, best, float(us[best]), rank, problem, sm_count, why)

    def _choice_of_empty(self, problem: GemmProblem, sm_count: int | None, arithmetic: Arithmetic | None) -> Choice:
        """Return the first kernel for a problem whose D is empty; for K = 0, the fastest."""
        if min(problem.m, problem.n, problem.batch) > 0:
            return self._fastest(problem.but(k=1), sm_count, arithmetic)
        table, serving = self._kernels.serving(problem, sm_count, arithmetic)
        first = 0 if serving is None else int(serving[0])
        config, swap_ab = table.config(first), bool(table.swap_ab[first])
        return Choice(table.kernels[first], config, lambda: "there is nothing to compute", 0.0, tuple, "model", swap_ab)

    def _choice(
        self,
        table: FeatureTable,
        best: int,
        us: float,
        rank: Callable[[], RunnersUp],
        problem: GemmProblem,
        sm_count: int | None,
        why: str,
    ) -> Choice:
        """Return a choice of the kernel ``best``; ``why`` is the start of its reason."""
        config, swap_ab, gpu = table.config(best), bool(table.swap_ab[best]), with_at_most(self.gpu, sm_count)

        def explain() -> str:
            return why + model.in_words(table, best, us, problem, gpu) + in_words(config, problem, swap_ab)

        return Choice(table.kernels[best], config, explain, us, rank, "model", swap_ab)

    def _slow_path(
        self, choice: Choice, problem: GemmProblem, sm_count: int | None, arithmetic: Arithmetic | None
    ) -> slow_path.SlowPath | None:
        """Return the predicted loss of a problem relative to one with other formats, also where rows decided the
        choice."""
        if slow_path.has_fast_formats(problem, choice.config) and (
            arithmetic is None or self._is_near_bound(problem, choice.predicted_us)
        ):
            return None

        def us(other: GemmProblem, keeps_bits: bool) -> float:
            # With other types, other bits would be required.
            keeps_types = (other.a_dtype, other.b_dtype) == (problem.a_dtype, problem.b_dtype)
            required = arithmetic if keeps_bits and keeps_types else None
            if self._kernels.find(other, sm_count, required) is None:
                return inf
            table, serving, work = self._times(other, sm_count, required)
            return float(work["us"][_members(table, serving)].min())

        return slow_path.fewest_changes(problem, arithmetic is not None, us)

    def _is_near_bound(self, problem: GemmProblem, us: float) -> bool:
        """Whether DRAM or the power limit allows no kernel to take much less time."""
        typical = problem.typical()
        return us <= slow_path.MUCH * max(least_us(typical, self.gpu), power_us(typical, self.gpu))

    def _bound(self, sm_count: int | None) -> int | None:
        """Return ``sm_count``, or None where it is no limit."""
        if sm_count is not None and (type(sm_count) is not int or sm_count < 1):
            raise UnsupportedProblemError(f"sm_count is {sm_count!r}; it must be a positive integer")
        return None if sm_count is None or sm_count >= self.gpu.sms else sm_count


def named_launch(
    config: GemmConfig, slices: int | None, problem: GemmProblem, gpu: Gpu, arithmetic: Arithmetic | None = None
) -> tuple[int, bool]:
    """Return the slices of K of a kernel that a caller names, from the caller or else from the model, and whether it
    runs the transposed problem. With ``arithmetic``, the kernel must have it.

    Raises:
        UnsupportedProblemError: the kernel does not support the problem, or has another arithmetic.
        ConfigError: it does not support this number of slices.
    """
    swap_ab = is_swapped(config, problem)
    if slices is not None:
        check_slices(config, slices)
        kernels = [SlicedKernel("", slices)]
    else:
        kernels = (arithmetic and kernels_of("", config, arithmetic)) or in_each_number("", config)
    if arithmetic is not None:
        _check_arithmetic(config, kernels, slices, arithmetic)
    if len(kernels) == 1:
        return kernels[0].slices, swap_ab
    gpu_model = model_of(gpu.name, gpu.model)
    entries = [(kernel, config, swap_ab) for kernel in kernels]
    table = FeatureTable.of(entries, gpu, gpu_model.network if gpu_model else None)
    fastest = int(model.times(table, problem.but(k=max(problem.k, 1)), gpu)["us"].argmin())
    return table.kernels[fastest].slices, swap_ab


def _check_arithmetic(
    config: GemmConfig, kernels: Sequence[SlicedKernel], slices: int | None, arithmetic: Arithmetic
) -> None:
    """Raise UnsupportedProblemError where a kernel that a caller names has another arithmetic than the required one."""
    from gemmill.library.arithmetic import arithmetic_of  # programs that require no arithmetic start faster

    if {arithmetic_of(config, kernel.slices) for kernel in kernels} != {arithmetic}:
        raise UnsupportedProblemError(
            f"kernel {kernel_name(config)} has arithmetic {arithmetic_of(config, slices or 0)}, and bits requires "
            f"{arithmetic}: name a kernel that has it, or leave out bits"
        )


def _runners_up(table: FeatureTable, best: int, order: Sequence[int], us: Floats) -> RunnersUp:
    """Return all kernels except the best, with their times."""
    others = [(table.kernels[i], float(us[i])) for i in order if table.kernels[i] != table.kernels[best]]
    return tuple(others[:RUNNERS_UP])


def _fastest_of_each(table: FeatureTable, members: Integers | None, us: Floats) -> dict[SlicedKernel, float]:
    """Return the least time of each kernel, over both orders of A and B."""
    fastest: dict[SlicedKernel, float] = {}
    for i in _members(table, members).tolist():
        fastest[table.kernels[i]] = min(float(us[i]), fastest.get(table.kernels[i], inf))
    return fastest


def _members(table: FeatureTable, serving: Integers | None) -> Integers:
    """Return the indices of the kernels that support a problem."""
    return np.arange(len(table.kernels)) if serving is None else serving


def _ranked(table: FeatureTable, members: Integers | None, us: Floats, count: int) -> list[int]:
    """Return the indices of the fastest distinct kernels. On equal times the first wins: in order of families, the
    direct problem before its transpose, exact formats, then names."""
    member_us = us if members is None else us.take(members)
    if 4 * count < member_us.size:
        fewest = np.sort(member_us.argpartition(2 * count)[: 2 * count])
        order = fewest[member_us.take(fewest).argsort(kind="stable")]
    else:
        order = member_us.argsort(kind="stable")
    return table.first((order if members is None else members.take(order)).tolist(), count)
