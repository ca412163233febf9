"""Evaluate the network on held-out problems.

Folds are made by K, so that no weight matrix is in both training and test problems. The figures are throughputs
relative to the best kernel: for the selected kernel, as geometric mean and 5th percentile over problems, and for the
best of the first eight kernels. They are computed for the analytic model alone, and with the network's correction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any

import numpy as np

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.profiler.training.network import fit, predict
from gemmill.profiler.training.rows import Rows, merged

FOLDS = 10


def folds(problems: Iterable[GemmProblem], count: int) -> dict[int, int]:
    """Assign each K to one of at most ``count`` folds, so that no weight matrix is in two folds."""
    return {k: i % count for i, k in enumerate(sorted({problem.k for problem in problems}))}


def judge(rows: Sequence[Rows], gpu: str) -> dict[str, dict[str, Any]]:
    """Figures of a GPU's problems, held out once for each run, by the type of A and for all types."""
    fold, problems = folds((r.problem for r in rows), FOLDS), merged(rows)
    shares: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for held_out in sorted({*fold.values()}):
        layers = fit([r for r in problems if fold[r.problem.k] != held_out], gpu)
        for r in rows:
            if r.gpu == gpu and fold[r.problem.k] == held_out:
                ratios = *reached(r, r.analytic), *reached(r, r.analytic + predict(layers, r.features))
                shares[r.problem.a_dtype].append(ratios)
                shares["all"].append(ratios)
    result = {}
    for types, samples in shares.items():
        columns = np.array(samples).T
        result[types] = {"problems": len(samples), "analytic": _summary(*columns[:2]), "fitted": _summary(*columns[2:])}
    return result


def _summary(first: Any, of_eight: Any) -> list[float]:
    """Geometric mean and 5th percentile for the first kernel, and geometric mean for the best of the first eight."""
    return [round(float(x), 4) for x in (geometric_mean(first), np.percentile(first, 5), geometric_mean(of_eight))]


def reached(rows: Rows, predicted: Any) -> tuple[float, float]:
    """Time of the best kernel divided by that of the predicted best, and by that of the best of the first eight."""
    first: dict[SlicedKernel, float] = {}
    for i in np.argsort(predicted, kind="stable"):
        first.setdefault(rows.kernels[i], float(rows.measured[i]))
        if len(first) == 8:
            break
    best = min(rows.best, float(rows.measured.min()))
    return math.exp(best - next(iter(first.values()))), math.exp(best - min(first.values()))
