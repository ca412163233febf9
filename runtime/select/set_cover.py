"""Finds the fewest kernels that run given problems nearly as fast as all kernels would."""

from __future__ import annotations

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
    good = {p: {k: us / min(by_kernel.values()) for k, us in by_kernel.items()} for p, by_kernel in times.items()}
    good = {p: {k: ratio for k, ratio in by_kernel.items() if ratio <= 1 + allowed[p]} for p, by_kernel in good.items()}
    chosen = _without_replaceable(_greedy(good, dict.fromkeys(good, 1)), good)
    chosen_only = {p: {k: ratio for k, ratio in by_kernel.items() if k in chosen} for p, by_kernel in good.items()}
    return _greedy(chosen_only, {p: weights.get(p, 1) for p in chosen_only}) if weights else chosen


def _without_replaceable(chosen: list[str], good: Mapping[Problem, Mapping[str, float]]) -> list[str]:
    """Return kernels without those that the others replace; the last chosen goes first."""
    for kernel in reversed(chosen):
        others = [other for other in chosen if other != kernel]
        if not any(by_kernel.keys().isdisjoint(others) for by_kernel in good.values()):
            chosen = others
    return chosen


def _greedy(good: Mapping[Problem, Mapping[str, float]], weights: Mapping[Problem, float]) -> list[str]:
    """Return kernels until each problem has one that is good for it, in order of weight."""
    chosen: list[str] = []
    while good:
        gains: dict[str, tuple[float, float]] = {}
        for problem, by_kernel in good.items():
            for kernel, ratio in by_kernel.items():
                gain, total = gains.get(kernel, (0.0, 0.0))
                gains[kernel] = gain + weights[problem], total + ratio
        best = min(gains, key=lambda kernel: (-gains[kernel][0], gains[kernel][1], kernel))
        chosen.append(best)
        good = {p: by_kernel for p, by_kernel in good.items() if best not in by_kernel}
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
