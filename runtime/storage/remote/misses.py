"""Why a remote did not serve a kernel: a table of reasons, and what follows from each."""

from __future__ import annotations

from collections.abc import Mapping
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
