"""The law of sustained load fitted (runtime/select/cost/sustained.py), to records of the regime ``sustained``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.names import parse_name
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.baselines.baseline import THROUGH_TORCH
from gemmill.profiler.training.judge import folds
from gemmill.profiler.training.rows import is_learnt_from, of_problem, us_of
from gemmill.runtime.select.cost.model import FeatureTable, estimate
from gemmill.runtime.select.cost.sustained import Law, Moved, power_us
from gemmill.runtime.select.kernels.faults import needs_swap

FOLDS = 8
SHARPNESS = 8.0
"""How much less a kernel weighs the slower it is: the choice is among the fast ones."""
FEWEST = 12
"""Problems that a law is fitted to, at least."""
OTHERS = 1 / 3
"""What a problem of another type or GPU counts as, there and in the fit: what elements cost is alike in all."""

Run = tuple[Sequence[Measurement], Gpu]
"""Measurements, and where they were made."""


class Held(NamedTuple):
    """The kernels of a problem under sustained load."""

    problem: GemmProblem
    model_us: Any
    """What the model says of a lone launch."""
    power_us: float
    """Least time under the power limit."""
    moved: Moved
    us: Any
    """Measured."""
    baseline_us: float | None
    """Of PyTorch's cuBLAS."""
    watts: float
    """That the GPU drew, in the median over kernels."""

    def by(self, law: Law) -> Any:
        """What a law says."""
        return law.us(self.model_us, self.power_us, self.moved, self.problem)


def held(measurements: Iterable[Measurement], gpu: Gpu) -> list[Held]:
    """The problems of one run that the law is for."""
    times = of_problem(m for m in measurements if m.regime == "sustained" and m.us is not None and m.holds == "time")
    found = []
    for problem, own in times.items():
        of_kernels = {name: m for name, m in own.items() if is_learnt_from(m)}
        if not of_kernels or problem.a_dtype != problem.b_dtype:
            continue
        parts = [part for swap_ab in (False, True) if (part := _part(problem, [*of_kernels], swap_ab, gpu))]
        names, model_us, moved = zip(*parts, strict=True)
        found.append(
            Held(
                problem,
                np.concatenate(model_us),
                power_us(problem, gpu),
                Moved(*(np.concatenate(column) for column in zip(*moved, strict=True))),
                np.array([us_of(of_kernels[name]) for part in names for name in part]),
                next((us_of(own[name]) for name in THROUGH_TORCH if name in own), None),
                median(m.watts for m in of_kernels.values() if m.watts is not None),
            )
        )
    return found


def _part(problem: GemmProblem, kernels: Sequence[str], swap_ab: bool, gpu: Gpu) -> tuple[list[str], Any, Moved] | None:
    """Names, the model's times and what is moved, of the kernels that run a problem as it is, or transposed."""
    configs = {name: parse_name(name) for name in kernels}
    members = {name: config for name, config in configs.items() if needs_swap(config, problem) is swap_ab}
    if not members:
        return None
    table = FeatureTable.of([*members.values()], swap_ab)
    return [*members], estimate(table, problem, gpu).us, table.moved


def fit(problems: Sequence[Held], others: Sequence[Held] = ()) -> Law:
    """Least squares of logarithms: the weights by what differs between kernels of a problem, of this type or
    of others, then the scale and the watts of this one."""
    rows, wanted = [], []
    for x, share in (*((x, 1.0) for x in problems), *((x, OTHERS) for x in others)):
        weights = share * np.exp(-SHARPNESS * np.log(x.us / x.us.min()) / 2) / math.sqrt(x.us.size)
        padding = x.moved.padding(x.problem)
        columns = np.stack([np.log(x.model_us / padding), x.moved.written, x.moved.fetched], axis=1)
        took = np.log(x.us / padding)
        rows.append((columns - columns.mean(axis=0)) * weights[:, np.newaxis])
        wanted.append((took - took.mean()) * weights)
    found, *_ = np.linalg.lstsq(np.concatenate(rows), np.concatenate(wanted), rcond=None)
    burst, written, fetched = map(float, found)
    law = Law(burst, written, fetched, 1.0, round(median(x.watts for x in problems)))
    best = [int(x.us.argmin()) for x in problems]
    scale = geometric_mean([float(x.us[i] / x.by(law)[i]) for x, i in zip(problems, best, strict=True)])
    return law._replace(scale=scale)


def judge(problems: Sequence[Held], others: Sequence[Held] = ()) -> dict[str, Any]:
    """What the kernel that is first reaches, held out by K: of the best measured and of cuBLAS, geometric means, by the
    model of a lone launch and by the law. Nothing where all have one K, and none can be held out."""
    fold = folds((x.problem for x in problems), FOLDS)
    found: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for which in sorted({*fold.values()} if len(fold) > 1 else ()):
        held_out = {k for k, own in fold.items() if own == which}
        law = fit(*([x for x in of if x.problem.k not in held_out] for of in (problems, others)))
        for x in problems:
            if x.problem.k in held_out:
                for name, us in (("model", x.model_us), ("law", x.by(law))):
                    chosen = float(x.us[int(np.argmin(us))])
                    found[name].append((float(x.us.min()) / chosen, x.baseline_us and x.baseline_us / chosen))
    return {
        name: {
            "of the best": round(geometric_mean([best for best, _ in own]), 4),
            "of cuBLAS": round(geometric_mean([x for _, x in own if x]), 4) if any(x for _, x in own) else None,
        }
        for name, own in found.items()
    }


def laws(runs: Iterable[Run], elsewhere: Iterable[Run] = ()) -> dict[str, Any]:
    """The content of a file of laws: of each type of A and B that was measured on a GPU, where there are problems
    enough with those of other types and what was measured elsewhere."""
    found: dict[str, list[Held]] = defaultdict(list)
    for x in (x for run in runs for x in held(*run)):
        found[x.problem.a_dtype].append(x)
    more = [x for run in elsewhere for x in held(*run)]
    types = {}
    for dtype, own in sorted(found.items()):
        others = [*more, *(x for other, theirs in found.items() if other != dtype for x in theirs)]
        if len(own) + OTHERS * len(others) >= FEWEST:
            types[dtype] = {
                "law": {name: round(x, 5) for name, x in fit(own, others)._asdict().items()},
                "problems": len(own),
                "held out by K": judge(own, others),
            }
    return {"types": types}
