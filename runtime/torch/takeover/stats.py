"""What was served, and what was left to PyTorch and why: counts that lie with what calls are recognised by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Run = Callable[[tuple[Any, ...], dict[str, Any], tuple[Any, ...]], Any]
"""Computes a call: of its positional and its keyword arguments, and the tensors among them."""


@dataclass(slots=True, eq=False)
class Route:
    """What computes calls of one signature, and how many there were."""

    operator: str
    by: str
    """The family of its kernel, or why it is left to PyTorch."""
    is_served: bool
    flops: int
    """Of a call."""
    run: Run
    matches: Callable[..., bool]
    """Whether tensors are as those of the first."""
    calls: int = 0


@dataclass(slots=True)
class Line:
    """Calls of an operator that went one way."""

    problems: int = 0
    """How many signatures they have."""
    calls: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What :func:`stats` tells; as text, a table."""

    served: dict[str, dict[str, Line]] = field(default_factory=dict)
    """By operator, then by family of kernels."""
    fallback: dict[str, dict[str, Line]] = field(default_factory=dict)
    """By operator, then by the reason for which PyTorch computed it."""

    @property
    def share(self) -> float:
        """Of all floating-point operations, the part that our kernels did; NaN of none."""
        served, others = (
            sum(line.flops for lines in part.values() for line in lines.values())
            for part in (self.served, self.fallback)
        )
        return served / (served + others) if served + others else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"share": self.share if self.served or self.fallback else None, **asdict(self)}

    def __str__(self) -> str:
        rows = [("operator", "by", "problems", "calls", "GFLOP")]
        for part, mark in ((self.served, ""), (self.fallback, "PyTorch: ")):
            for operator, lines in sorted(part.items()):
                for by, x in sorted(lines.items()):
                    rows.append((operator, mark + by, str(x.problems), str(x.calls), f"{x.flops / 1e9:.3f}"))
        if len(rows) == 1:
            return "no product yet"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        text = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*text, f"{self.share:.1%} of floating-point operations served"])


_lock = threading.Lock()
_routes: list[Route] = []
_past: dict[tuple[bool, str, str], Line] = {}
"""Counts that no route has any more, by whether calls were served, operator, and family or reason."""


def add(route: Route) -> None:
    """Have :func:`stats` count the calls of a route from now on. Counting is not exact where threads count calls of
    one signature at the same time."""
    with _lock:
        _routes.append(route)


def forget(routes: Iterable[Route]) -> None:
    """Keep the sums of some routes, and these no longer."""
    with _lock:
        for route in routes:
            _add(_past, route)
            _routes.remove(route)


def count(operator: str, reason: str, flops: int) -> None:
    """Count a call that PyTorch computed though others of its signature are served, or have no route."""
    with _lock:
        line = _past.setdefault((False, operator, reason), Line())
        line.calls += 1
        line.flops += flops


def stats() -> Stats:
    """What :func:`gemmill.torch.enabled` served since the process began or :func:`reset_stats` was called, and what it
    left to PyTorch: ``print(gemmill.torch.stats())`` is a table, ``stats().share`` the part of floating-point
    operations that our kernels did, ``stats().as_dict()`` for JSON."""
    with _lock:
        sums = {key: replace(line) for key, line in _past.items()}
        for route in _routes:
            _add(sums, route)
    totals = Stats()
    for (is_served, operator, by), line in sums.items():
        (totals.served if is_served else totals.fallback).setdefault(operator, {})[by] = line
    return totals


def reset_stats() -> None:
    """Begin to count anew. Signatures keep their routes."""
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
