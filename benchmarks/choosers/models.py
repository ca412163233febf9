"""gemmill's selector as a chooser among the measured kernels of a case: whole, and without some of its parts."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.choosers.cases import Answer, Case

from gemmill.profiler.training.rows import entries_of
from gemmill.runtime.select.cost.model import analytic
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.selector import Selector


def gemmill(case: Case) -> Answer:
    """The selector as it ships, with its measurements of the problem if it has some."""
    selector = _selector(case)
    choice = selector.select(case.problem, objective=case.regime)
    ranked = [choice.kernel, *(candidate.kernel for candidate in selector.candidates(case.problem, _ALL))]
    return _measured(case, map(str, ranked))


def without_measurements(case: Case) -> Answer:
    """The analytic part and the network, with the energy term at the power limit; no measurements of the problem."""
    selector = _selector(case)
    times = selector.times(case.problem)
    ranked = sorted(times, key=lambda kernel: (times[kernel], kernel))
    if choice := selector.under_power(case.problem, case.regime):
        ranked = [choice.kernel, *(kernel for kernel, _ in choice.runners_up), *ranked]
    return _measured(case, map(str, ranked))


def analytic_part(case: Case) -> Answer:
    """The analytic part alone, without measurements and network."""
    names = {kernel.sliced: name for name, kernel in case.kernels.items()}
    gpu = figures(case.gpu)
    table = FeatureTable.of(entries_of(names, case.problem), gpu)
    return _measured(
        case, (names[table.kernels[i]] for i in analytic(table, case.problem, gpu)["us"].argsort(kind="stable"))
    )


_ALL = 1 << 20
"""More candidates than there are."""


def _selector(case: Case) -> Selector:
    """A selector among the candidates. A program makes one for its kernel sets, and then only selects."""
    configs = {kernel.sliced.name: kernel.config for kernel in case.kernels.values()}
    return Selector(configs, figures(case.gpu))


def _measured(case: Case, names: Iterable[str]) -> Answer:
    """The names that are candidates, each once; the selector also ranks other numbers of slices. None without any."""
    return list(dict.fromkeys(name for name in names if name in case.kernels)) or None
