"""Why a remote did not provide a kernel: a table of reasons with their consequences."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Reason(NamedTuple):
    """Consequences of one reason."""

    opens: bool
    """Whether all requests pause for a while, since other kernels would fail too. Otherwise only the same kernel is not
    requested again for a while."""
    again: bool = False
    """Whether to retry once immediately on a new connection, since the failure may be accidental."""


REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        # about the remote as a whole
        "unreachable": Reason(opens=True),
        "timeout": Reason(opens=True),
        "tls": Reason(opens=True),
        "closed": Reason(opens=True, again=True),
        "garbage": Reason(opens=True),
        "unauthorised": Reason(opens=True),
        "busy": Reason(opens=True),
        "pending": Reason(opens=True),
        "server error": Reason(opens=True),
        "token": Reason(opens=True),
        "error": Reason(opens=True),
        # about one kernel
        "absent": Reason(opens=False),
        "forbidden": Reason(opens=False),
        "redirected": Reason(opens=False),
        "unexpected": Reason(opens=False),
        "too large": Reason(opens=False),
        "damaged": Reason(opens=False, again=True),
        "untrusted": Reason(opens=False),
        "another": Reason(opens=False),
        "version": Reason(opens=False),
        "driver": Reason(opens=False),
        "failed": Reason(opens=False),
        "full": Reason(opens=False),
        "signing": Reason(opens=False),
        # about neither, without a request
        "remembered": Reason(opens=False),
        "paused": Reason(opens=False),
        "no keys": Reason(opens=False),
    }
)
"""Every reason, by its name in counters."""


class Miss(Exception):
    """Why a kernel did not come from a remote.

    Args:
        reason: one of :data:`REASONS`.
        says: what happened, for messages.
        pause: seconds until the remote accepts requests again.
    """

    def __init__(self, reason: str, says: str, pause: float | None = None) -> None:
        super().__init__(f"{reason}: {says}")
        self.reason, self.says, self.pause = reason, says, pause

    @property
    def follows(self) -> Reason:
        """The consequences."""
        return REASONS[self.reason]


PAUSE_SECONDS = 60.0
"""Pause after a failure of the remote, and how long a missing kernel is remembered."""
LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 3600.0
"""The shortest and the longest pause that a remote can ask for."""
_JITTER = 0.5
"""Pauses are longer by up to this fraction, so that not all clients come back at once."""
_MOST_MISSES = 10_000
"""Most remembered misses; beyond this, all are dropped."""


class Breaker:
    """A circuit breaker: it lets requests pass until one fails, then none during a pause, then one, which decides about
    the others.

    Not thread-safe: its user holds a lock.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = PAUSE_SECONDS
        self._until: float | None = None
        self.cause: Miss | None = None
        """The miss that opened it; None while it is closed."""

    def seconds(self) -> float:
        """Return the seconds until a request may pass; 0 where one may pass now."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def passes(self) -> bool:
        """Whether a request may be sent now. While the first request after a pause is running, no other may."""
        if self._until is None:
            return True
        if self.seconds() > 0:
            return False
        self._until = self._clock() + self._pause
        return True

    def succeeded(self) -> None:
        """Record an answer."""
        self._until = self.cause = None

    def failed(self, miss: Miss) -> None:
        """Record a failure: pause for :data:`PAUSE_SECONDS`, or as long as the remote asked."""
        pause = PAUSE_SECONDS if miss.pause is None else max(LEAST_PAUSE_SECONDS, min(miss.pause, MOST_PAUSE_SECONDS))
        self._pause = pause * (1 + _JITTER * random.random())
        self._until, self.cause = self._clock() + self._pause, miss


class Misses:
    """Recent misses of a remote.

    Not thread-safe: its user holds a lock.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Miss]] = {}

    def add(self, what: str, miss: Miss) -> None:
        """Remember a miss for :data:`PAUSE_SECONDS`."""
        if len(self._known) >= _MOST_MISSES:
            self._known.clear()
        self._known[what] = self._clock() + PAUSE_SECONDS, miss

    def get(self, what: str) -> Miss | None:
        """Return the remembered miss of a kernel or endpoint."""
        until, miss = self._known.get(what, (0.0, None))
        if miss is not None and until <= self._clock():
            del self._known[what]
            return None
        return miss
