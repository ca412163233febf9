"""Finds the fewest kernels that run given problems nearly as fast as all kernels would."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

Problem = TypeVar("Problem", bound=Hashable)


def set_cover(
    times: Mapping[Problem, Mapping[str, float]],
    allowed: Mapping[Problem, float],
    weights: Mapping[Problem, float] = MappingProxyType({}),
) -> list[str]:
    """Return kernels such that on every problem one of them takes at most ``1 + allowed`` times the fastest time.
    Kernels that are good for the most problems come first.

    The algorithm is greedy: next comes the kernel that is good for the most problems without a good kernel so far; on
    ties the faster one over these problems, then the first by name. It returns at most ln(problems) + 1 times as many
    kernels as necessary (Chvatal, "A greedy heuristic for the set-covering problem", 1979), and none that the others
    replace. Weights do not change which kernels are chosen, only their order.

    Args:
        times: for each problem the times of the kernels that support it, at least one.
        allowed: what each problem may lose, relative to the least time.
        weights: weights of problems; 1 for those that are missing.
    """
    good = {problem: _within(by_kernel, 1 + allowed[problem]) for problem, by_kernel in times.items()}
    chosen = _without_replaceable(_greedy(good, {}), good)
    if not weights:
        return chosen
    left = {*chosen}
    return _greedy({p: {k: ratio for k, ratio in of_p.items() if k in left} for p, of_p in good.items()}, weights)


def _within(by_kernel: Mapping[str, float], most: float) -> dict[str, float]:
    """Return the times relative to the least one, of kernels for which they are at most ``most``."""
    least = min(by_kernel.values())
    return {kernel: us / least for kernel, us in by_kernel.items() if us / least <= most}


def _without_replaceable(chosen: list[str], good: Mapping[Problem, Mapping[str, float]]) -> list[str]:
    """Return kernels without those that the others replace; the last chosen goes first."""
    served = {kernel: list[Problem]() for kernel in chosen}
    serving = dict[Problem, int]()
    for problem, by_kernel in good.items():
        for kernel in (of_problem := by_kernel.keys() & served.keys()):
            served[kernel].append(problem)
        serving[problem] = len(of_problem)
    for kernel in reversed(chosen):
        if all(serving[problem] > 1 for problem in served[kernel]):
            for problem in served.pop(kernel):
                serving[problem] -= 1
    return [*served]


def _greedy(good: Mapping[Problem, Mapping[str, float]], weights: Mapping[Problem, float]) -> list[str]:
    """Return kernels until each problem has one that is good for it, in order of weight; each is 1 without weights."""
    unserved = defaultdict[str, dict[Problem, float]](dict)
    gains = defaultdict[str, float](int)
    for problem, by_kernel in good.items():
        for kernel, ratio in by_kernel.items():
            unserved[kernel][problem] = ratio
            gains[kernel] += weights.get(problem, 1)
    chosen: list[str] = []
    while unserved:
        most = max(gains.values())
        equal = [kernel for kernel, gain in gains.items() if gain == most]
        best = min(equal, key=lambda kernel: (sum(unserved[kernel].values()), kernel))
        chosen.append(best)
        for problem in [*unserved[best]]:
            for kernel in good[problem]:
                del unserved[kernel][problem]
                gains[kernel] -= weights.get(problem, 1)
                if not unserved[kernel]:
                    del unserved[kernel], gains[kernel]
    return chosen


def regrets(times: Mapping[Problem, Mapping[str, float]], kernels: Iterable[str]) -> dict[Problem, float | None]:
    """Return what each problem loses with only these kernels, relative to the least time; None where none supports
    it."""
    available = set(kernels)
    losses: dict[Problem, float | None] = {}
    for problem, by_kernel in times.items():
        least = min((us for kernel, us in by_kernel.items() if kernel in available), default=None)
        losses[problem] = None if least is None else least / min(by_kernel.values()) - 1
    return losses
