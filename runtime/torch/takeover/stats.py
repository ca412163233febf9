"""What was served, and what was left to PyTorch and why: counts that lie with what calls are recognised by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Run = Callable[[tuple[Any, ...], dict[str, Any], tuple[Any, ...]], Any]
"""Computes a call: of its positional and its keyword arguments, and the tensors among them."""


@dataclass(slots=True, eq=False)
class Known:
    """Calls of one signature, and what becomes of them."""

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
        parts = {
            name: {
                operator: {by: {"problems": x.problems, "calls": x.calls, "flops": x.flops} for by, x in lines.items()}
                for operator, lines in part.items()
            }
            for name, part in (("served", self.served), ("fallback", self.fallback))
        }
        return {"share": self.share if self.served or self.fallback else None, **parts}

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


class Tally:
    """Every :class:`Known`, and calls that have none. Counting is not exact where threads count the same signature at
    the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: list[Known] = []
        self._past: dict[tuple[bool, str, str], Line] = {}

    def add(self, known: Known) -> None:
        """Count what a signature's calls are counted by from now on."""
        with self._lock:
            self._known.append(known)

    def forget(self, some: Iterable[Known]) -> None:
        """Keep the sums of some signatures, and these no longer."""
        with self._lock:
            for known in some:
                _add(self._past, known)
                self._known.remove(known)

    def count(self, operator: str, reason: str, flops: int) -> None:
        """Count a call that PyTorch computed though its signature is served, or is not known."""
        with self._lock:
            line = self._past.setdefault((False, operator, reason), Line())
            line.calls += 1
            line.flops += flops

    def stats(self) -> Stats:
        """All sums."""
        with self._lock:
            sums = {key: Line(x.problems, x.calls, x.flops) for key, x in self._past.items()}
            for known in self._known:
                _add(sums, known)
        found = Stats()
        for (is_served, operator, by), line in sums.items():
            (found.served if is_served else found.fallback).setdefault(operator, {})[by] = line
        return found

    def reset(self) -> None:
        """Begin anew. Signatures stay known."""
        with self._lock:
            self._past.clear()
            for known in self._known:
                known.calls = 0


def _add(sums: dict[tuple[bool, str, str], Line], known: Known) -> None:
    if known.calls:
        line = sums.setdefault((known.is_served, known.operator, known.by), Line())
        line.problems += 1
        line.calls += known.calls
        line.flops += known.calls * known.flops


TALLY = Tally()
"""The process's."""


def stats() -> Stats:
    """What :func:`gemmill.torch.enabled` served since the process began or :func:`reset_stats` was called, and what it
    left to PyTorch: ``print(gemmill.torch.stats())`` is a table, ``stats().share`` the part of floating-point
    operations that our kernels did, ``stats().as_dict()`` for JSON."""
    return TALLY.stats()


def reset_stats() -> None:
    """Begin to count anew."""
    TALLY.reset()
