"""Quotas: the compile-seconds that a tenant may take, in a bucket that fills evenly and is charged what jobs took."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gemmill.service.refusal import Refusal

_HOUR = 3600.0
_MOST = 10_000
"""Tenants that are remembered; a token's name is one."""


@dataclass(slots=True)
class _Account:
    left: float
    at: float


class Quotas:
    """Compile-seconds of tenants.

    Args:
        seconds: what each may take in an hour, and at once after an hour without any.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._accounts: dict[str, _Account] = {}

    def reserve(self, tenant: str, seconds: float, now: float | None = None) -> None:
        """Take what a job is expected to take; Refusal 429, with the time until there is enough, where that is not
        left."""
        account = self._account(tenant, now)
        if account.left < min(seconds, self._seconds):
            wait = (min(seconds, self._seconds) - account.left) * _HOUR / self._seconds
            raise Refusal(
                429,
                "quota",
                f"{tenant} has {max(0.0, account.left):.0f} of {self._seconds:g} compile-seconds an hour left, and "
                f"this is expected to take {seconds:.0f}",
                retry_after=wait,
            )
        account.left -= seconds

    def settle(self, tenant: str, reserved: float, taken: float, now: float | None = None) -> None:
        """Charge what a job took in place of what it was expected to."""
        self._account(tenant, now).left += reserved - taken

    def _account(self, tenant: str, now: float | None) -> _Account:
        now = time.monotonic() if now is None else now
        if (account := self._accounts.get(tenant)) is None:
            if len(self._accounts) >= _MOST:
                self._accounts.pop(next(iter(self._accounts)))
            account = self._accounts[tenant] = _Account(self._seconds, now)
        account.left = min(self._seconds, account.left + (now - account.at) * self._seconds / _HOUR)
        account.at = now
        return account
