"""Why a remote did not serve a kernel: a table of reasons, and what follows from each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Reason(NamedTuple):
    """What follows from one reason."""

    opens: bool
    """Whether nothing is asked of the remote for a while, as the next kernel would fare no better. Otherwise the same
    kernel is not asked for again for a while."""
    again: bool = False
    """Whether it is asked once more at once, over a fresh connection: it may have been an accident."""


REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        # of the remote as a whole
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
        # of one kernel
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
        # of neither, and without a request
        "remembered": Reason(opens=False),
        "paused": Reason(opens=False),
        "no keys": Reason(opens=False),
    }
)
"""Every reason, as counters name it."""


class Miss(Exception):
    """Why a kernel did not come from a remote.

    Args:
        reason: one of :data:`REASONS`.
        says: what happened, for people.
        pause: seconds that the remote wants to be left alone.
    """

    def __init__(self, reason: str, says: str, pause: float | None = None) -> None:
        super().__init__(f"{reason}: {says}")
        self.reason, self.says, self.pause = reason, says, pause

    @property
    def follows(self) -> Reason:
        """What follows from it."""
        return REASONS[self.reason]


PAUSE_SECONDS = 60.0
"""How long a remote that failed is left alone, and for how long it is remembered what it does not have."""
LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 3600.0
"""The shortest and the longest that a remote can ask to be left alone."""
_JITTER = 0.5
"""Pauses are up to this part longer, so that a fleet does not come back at the same moment."""
_MOST_MISSES = 10_000
"""Most misses that are remembered; then all are forgotten."""


class Breaker:
    """Lets requests pass until one fails; then none for a while; then one, which decides for the others.

    Not for several threads at once: who uses it holds a lock.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = PAUSE_SECONDS
        self._until: float | None = None
        self.cause: Miss | None = None
        """The miss that opened it; None while it is closed."""

    def seconds(self) -> float:
        """How long no request may pass; 0 where one may."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def passes(self) -> bool:
        """Whether a request may be sent now. While the one after a pause is under way, no other may."""
        if self._until is None:
            return True
        if self.seconds() > 0:
            return False
        self._until = self._clock() + self._pause
        return True

    def succeeded(self) -> None:
        """An answer came."""
        self._until = self.cause = None

    def failed(self, miss: Miss) -> None:
        """None came, or one that says to stay away: for :data:`PAUSE_SECONDS`, or as long as the remote wants."""
        pause = PAUSE_SECONDS if miss.pause is None else max(LEAST_PAUSE_SECONDS, min(miss.pause, MOST_PAUSE_SECONDS))
        self._pause = pause * (1 + _JITTER * random.random())
        self._until, self.cause = self._clock() + self._pause, miss


class Misses:
    """What the remote did not have a moment ago.

    Not for several threads at once: who uses it holds a lock.

    Args:
        clock: seconds that only grow.
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
        """The miss of something that is remembered."""
        until, miss = self._known.get(what, (0.0, None))
        if miss is not None and until <= self._clock():
            del self._known[what]
            return None
        return miss
