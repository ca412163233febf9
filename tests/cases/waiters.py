"""Threads that wait for others, seen from outside."""

from __future__ import annotations

import time
from typing import Any


def until_waiting(flights: Any, count: int) -> None:
    """Return when so many threads wait for what another one makes, in a SingleFlight."""
    while sum(len(flight.is_over._cond._waiters) for flight in [*flights._flights.values()]) < count:
        time.sleep(0.01)
