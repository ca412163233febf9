"""Counts of calls that ran on gemmill or fell back to PyTorch. Each route counts the calls that it computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Run = Callable[[tuple[Any, ...], dict[str, Any], tuple[Any, ...]], Any]
"""Computes a call, from its positional arguments, its keyword arguments, and the tensors among both."""


@dataclass(slots=True, eq=False)
class Route:
    """How calls with one signature are computed, and how many there were."""

    operator: str
    by: str
    """The family of its kernel, or the reason for the fallback."""
    is_served: bool
    flops: int
    """Floating-point operations of one call."""
    run: Run
    matches: Callable[..., bool]
    """Whether a call's tensors match those of the first call."""
    calls: int = 0


@dataclass(slots=True)
class Line:
    """The calls of one operator with the same kernel family, or the same reason for a fallback."""

    problems: int = 0
    """How many different signatures (shapes, strides, dtypes) the calls have."""
    calls: int = 0
    flops: int = 0
    """Floating-point operations of all these calls."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of calls since the last reset. ``str()`` gives a table, with a row for each operator and family or
    reason."""

    served: dict[str, dict[str, Line]] = field(default_factory=dict)
    """Calls that ran on gemmill, by operator, then by kernel family."""
    fallback: dict[str, dict[str, Line]] = field(default_factory=dict)
    """Calls that fell back to PyTorch, by operator, then by reason."""

    @property
    def share(self) -> float:
        """The fraction of floating-point operations that ran on gemmill, 0 to 1; NaN if nothing was counted."""
        served, others = (
            sum(line.flops for lines in part.values() for line in lines.values())
            for part in (self.served, self.fallback)
        )
        return served / (served + others) if served + others else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """The counts as a dict for JSON. ``share`` is None if nothing was counted."""
        return {"share": self.share if self.served or self.fallback else None, **asdict(self)}

    def __str__(self) -> str:
        rows = [("operator", "kernel family or fallback", "problems", "calls", "GFLOP")]
        for part, mark in ((self.served, ""), (self.fallback, "PyTorch: ")):
            for operator, lines in sorted(part.items()):
                for by, x in sorted(lines.items()):
                    rows.append((operator, mark + by, str(x.problems), str(x.calls), f"{x.flops / 1e9:.3f}"))
        if len(rows) == 1:
            return "No matmuls counted yet."
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        text = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*text, f"{self.share:.1%} of floating-point operations ran on gemmill"])


_lock = threading.Lock()
_routes: list[Route] = []
_past: dict[tuple[bool, str, str], Line] = {}
"""Counts of routes that no longer exist, by whether calls ran on gemmill, operator, and family or reason."""


def add(route: Route) -> None:
    """Include the calls of a route in :func:`stats` from now on. Counts are inexact if several threads call one route
    at the same time."""
    with _lock:
        _routes.append(route)


def forget(routes: Iterable[Route]) -> None:
    """Drop some routes and keep the totals of their calls."""
    with _lock:
        for route in routes:
            _add(_past, route)
            _routes.remove(route)


def count(operator: str, reason: str, flops: int) -> None:
    """Count one call that fell back to PyTorch although its signature has no route, or a route to a kernel."""
    with _lock:
        line = _past.setdefault((False, operator, reason), Line())
        line.calls += 1
        line.flops += flops


def stats() -> Stats:
    """Count the matmuls of :func:`gemmill.torch.enabled` since the process began or :func:`reset_stats` was called.

    Returns:
        The calls that ran on gemmill, by operator and kernel family, and those that fell back to PyTorch, by operator
        and reason. ``print(gemmill.torch.stats())`` prints a table, ``stats().share`` is the fraction of floating-point
        operations that ran on gemmill (0 to 1), and ``stats().as_dict()`` is for JSON.
    """
    with _lock:
        sums = {key: replace(line) for key, line in _past.items()}
        for route in _routes:
            _add(sums, route)
    totals = Stats()
    for (is_served, operator, by), line in sums.items():
        (totals.served if is_served else totals.fallback).setdefault(operator, {})[by] = line
    return totals


def reset_stats() -> None:
    """Set all counts of :func:`stats` to zero. Kernels that are already selected stay selected."""
    with _lock:
        _past.clear()
        for route in _routes:
            route.calls = 0


def _add(sums: dict[tuple[bool, str, str], Line], route: Route) -> None:
    if route.calls:
        line = sums.setdefault((route.is_served, route.operator, route.by), Line())
        line.problems += 1
        line.calls += route.calls
        line.flops += route.calls * route.flops
