"""Problems that clients have asked for of late, and what they went to: kept in memory, for the page."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from gemmill.runtime.select.choice import Choice

_MOST = 200
"""Problems that are remembered."""


@dataclass(slots=True)
class RequestedProblem:
    """A problem on a GPU."""

    problem: str
    gpu: str
    choice: Choice
    """Of the last time."""
    times: int
    last: float
    """When, by the monotonic clock."""


class RequestedProblems:
    """Of each, how often; the least recent go."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str], RequestedProblem] = OrderedDict()

    def note(self, gpu: str, choice: Choice) -> None:
        """Somebody has asked."""
        key = gpu, str(choice.problem)
        times = self._rows.pop(key).times if key in self._rows else 0
        self._rows[key] = RequestedProblem(key[1], gpu, choice, times + 1, time.monotonic())
        if len(self._rows) > _MOST:
            self._rows.popitem(last=False)

    def rows(self, kernel: str = "") -> list[RequestedProblem]:
        """All, or those that went to a kernel, the most recent first."""
        return [row for row in reversed(self._rows.values()) if kernel in ("", row.choice.name)]
