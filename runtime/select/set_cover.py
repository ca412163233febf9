"""The fewest kernels that solve given problems nearly as fast as all kernels would."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Problem = TypeVar("Problem", bound=Hashable)


def set_cover(times: Mapping[Problem, Mapping[str, float]], regret: float) -> list[str]:
    """Kernels of which one takes at most ``1 + regret`` times as long as the fastest on every problem.

    Greedy: next comes the kernel that serves the most problems well that no earlier one does; of equal ones the faster
    over these problems, then the first by name. At most ln(problems) + 1 times as many as there need be (Chvatal, "A
    greedy heuristic for the set-covering problem", 1979).

    Args:
        times: of each problem the times of the kernels that solve it, at least one.
        regret: what a problem may lose, as part of the least time.
    """
    good = {p: {k: us / min(own.values()) for k, us in own.items()} for p, own in times.items()}
    good = {p: {k: over for k, over in own.items() if over <= 1 + regret} for p, own in good.items()}
    chosen: list[str] = []
    while good:
        gains: dict[str, tuple[int, float]] = {}
        for own in good.values():
            for kernel, over in own.items():
                count, total = gains.get(kernel, (0, 0.0))
                gains[kernel] = count + 1, total + over
        best = min(gains, key=lambda kernel: (-gains[kernel][0], gains[kernel][1], kernel))
        chosen.append(best)
        good = {p: own for p, own in good.items() if best not in own}
    return chosen


def regrets(times: Mapping[Problem, Mapping[str, float]], kernels: Iterable[str]) -> dict[Problem, float | None]:
    """What each problem loses with these kernels alone, as part of the least time; None where none solves it."""
    kept = set(kernels)
    lost: dict[Problem, float | None] = {}
    for problem, own in times.items():
        least = min((us for kernel, us in own.items() if kernel in kept), default=None)
        lost[problem] = None if least is None else least / min(own.values()) - 1
    return lost
