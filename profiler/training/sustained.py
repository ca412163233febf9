"""Fit the energy term (runtime/select/cost/energy.py) to records of the regime ``sustained``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.baselines.baseline import THROUGH_TORCH
from gemmill.profiler.training.judge import folds
from gemmill.profiler.training.rows import entries_of, is_learnt_from, of_problem, us_of
from gemmill.runtime.select.cost.energy import WEIGHTS, Energy, is_stream, padding, sustained_us
from gemmill.runtime.select.cost.model import times
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.model_file import GpuModel

FOLDS = 8
SHARPNESS = 8.0
"""How the weight of a kernel decreases with its time, since the selector chooses among the fast kernels."""
FEWEST = 12
"""Minimum number of problems to fit the term of a type."""
OTHERS = 0.6
"""Weight of a problem of another type or GPU, in this number and in the fit; the energy per element is similar."""

HELD_OUT = "held out by K"
"""Key of the figures on held-out problems: throughput relative to the best kernel and to cuBLAS."""

Run = tuple[Sequence[Measurement], Gpu, GpuModel | None]
"""Measurements, their GPU, and the model of that GPU."""


class Held(NamedTuple):
    """The kernels of a problem under sustained load."""

    problem: GemmProblem
    gpu: Gpu
    table: FeatureTable
    model_us: Any
    """Times of a burst, predicted by the model."""
    analytic_us: Any
    """Times of a burst, predicted by the analytic part of the model."""
    us: Any
    """Measured times."""
    baseline_us: float | None
    """Time of cuBLAS through PyTorch."""
    watts: float
    """Power of the GPU, median over kernels."""

    def by(self, energy: Energy) -> Any:
        """Times under sustained load, predicted with the energy term."""
        return sustained_us(energy, self.model_us, self.analytic_us, self.table, self.problem, self.gpu)

    @property
    def padding(self) -> Any:
        """Elements of D that tiles cover, relative to those of the problem."""
        columns = self.table.columns
        return padding(columns["tile"], self.table.side, columns["symmetric"], self.problem)


def held_problems(measurements: Iterable[Measurement], gpu: Gpu, model: GpuModel | None) -> list[Held]:
    """The problems of one run that the energy term applies to."""
    by_problem = of_problem(
        m for m in measurements if m.regime == "sustained" and m.us is not None and m.holds == "time"
    )
    problems = []
    for problem, by_kernel in by_problem.items():
        of_kernels = {kernel: m for kernel, m in by_kernel.items() if is_learnt_from(m)}
        entries = entries_of(of_kernels, problem)
        if not entries or problem.a_dtype != problem.b_dtype:
            continue
        table = FeatureTable.of(entries, gpu, model.network if model else None)
        work = times(table, problem, gpu)
        problems.append(
            Held(
                problem,
                gpu,
                table,
                work["us"],
                work["analytic_us"],
                np.array([us_of(of_kernels[kernel]) for kernel in table.kernels]),
                next((us_of(by_kernel[x]) for x in map(SlicedKernel, THROUGH_TORCH) if x in by_kernel), None),
                median(m.watts for m in of_kernels.values() if m.watts is not None),
            )
        )
    return problems


def fit(problems: Sequence[Held], others: Sequence[Held] = ()) -> dict[str, float]:
    """Fit the coefficients by least squares of logarithms.

    The weights, which are not negative, are fitted to the differences between kernels of a problem, of this type
    (``problems``) and of other types or GPUs (``others``). Scale and watts are fitted to this type only.
    """
    rows, targets = [], []
    for x, share in (*((x, 1.0) for x in problems), *((x, OTHERS) for x in others)):
        weights = share * np.exp(-SHARPNESS * np.log(x.us / x.us.min()) / 2) / math.sqrt(x.us.size)
        padding, table_columns = x.padding, x.table.columns
        figures = np.sqrt(x.model_us * x.analytic_us) / padding, table_columns["moved"], table_columns["stages"]
        columns = np.column_stack([*np.log(figures), is_stream(x.table)])
        took = np.log(x.us / padding)
        rows.append((columns - columns.mean(axis=0)) * weights[:, np.newaxis])
        targets.append((took - took.mean()) * weights)
    weight = dict(zip(WEIGHTS, _at_least_0(np.concatenate(rows), np.concatenate(targets)), strict=True))
    energy = weight | {"scale": 1.0, "watts": round(median(x.watts for x in problems))}
    best = [int(x.us.argmin()) for x in problems]
    scale = geometric_mean([float(x.us[i] / x.by(energy)[i]) for x, i in zip(problems, best, strict=True)])
    return energy | {"scale": scale}


def _at_least_0(rows: Any, targets: Any) -> list[float]:
    """Least squares with weights of at least 0: columns with negative weights are removed."""
    weights, kept = np.full(rows.shape[1], -1.0), np.ones(rows.shape[1], bool)
    while (weights < 0).any():
        weights = np.zeros(kept.size)
        weights[kept] = np.linalg.lstsq(rows[:, kept], targets, rcond=None)[0]
        kept &= weights >= 0
    return list(map(float, weights))


def judge(problems: Sequence[Held], others: Sequence[Held] = ()) -> dict[str, Any]:
    """Throughput of the first kernel relative to the best and to cuBLAS, as geometric means over problems held out by
    K, for the burst model and with the energy term. Empty if all problems have the same K."""
    fold = folds((x.problem for x in problems), FOLDS)
    ratios: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for held_out_fold in sorted({*fold.values()} if len(fold) > 1 else ()):
        held_out = {k for k, index in fold.items() if index == held_out_fold}
        energy = fit(*([x for x in group if x.problem.k not in held_out] for group in (problems, others)))
        for x in problems:
            if x.problem.k in held_out:
                for name, us in (("model", x.model_us), ("energy", x.by(energy))):
                    chosen = float(x.us[int(np.argmin(us))])
                    ratios[name].append((float(x.us.min()) / chosen, x.baseline_us and x.baseline_us / chosen))
    return {
        name: {
            "of the best": round(geometric_mean([best for best, _ in pairs]), 4),
            "of cuBLAS": round(geometric_mean([x for _, x in pairs if x]), 4) if any(x for _, x in pairs) else None,
        }
        for name, pairs in ratios.items()
    }


def energies(runs: Iterable[Run], elsewhere: Iterable[Run] = ()) -> dict[str, Any]:
    """Coefficients of the energy term for each type of A and B, with the number of problems and the figures on held-out
    problems. A type needs enough problems, among which those of other types and GPUs count less."""
    by_type: dict[str, list[Held]] = defaultdict(list)
    for x in (x for run in runs for x in held_problems(*run)):
        by_type[x.problem.a_dtype].append(x)
    more = [x for run in elsewhere for x in held_problems(*run)]
    types: dict[str, Any] = {}
    for dtype, problems in sorted(by_type.items()):
        others = [*more, *(x for other, theirs in by_type.items() if other != dtype for x in theirs)]
        if len(problems) + OTHERS * len(others) >= FEWEST:
            coefficients = {name: round(x, 5) for name, x in fit(problems, others).items()}
            types[dtype] = coefficients | {"problems": len(problems), HELD_OUT: judge(problems, others)}
    return types
