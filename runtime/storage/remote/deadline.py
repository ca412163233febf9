"""One deadline for all that a remote is asked of one kernel: names looked up, connections made, bytes read."""

from __future__ import annotations

import time


class Deadline:
    """A time by which something has ended.

    Args:
        seconds: from now.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, most: float | None = None) -> float:
        """Seconds that are left, above 0; at most ``most``. TimeoutError where none are."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        return left if most is None else min(left, most)
