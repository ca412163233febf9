"""Whose signatures count here, and whether that can be read."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.errors import TrustError
from gemmill.runtime.health.finding import Finding
from gemmill.runtime.storage.trust.keys import TrustedKeys


def trusted_keys() -> Iterator[Finding]:
    """The keys of ``GEMMILL_TRUSTED_KEYS``; nothing where it is not set."""
    try:
        keys = TrustedKeys.of_settings()
    except TrustError as error:
        yield Finding("trusted keys", "wrong", "GEMMILL_TRUSTED_KEYS", f"{error}; nothing that is signed can be opened")
        return
    if keys is not None:
        counting = [key.id for key in keys.keys if key.id not in keys.revoked]
        detail = ", ".join(counting) or "none"
        if keys.revoked:
            detail += f"; revoked: {', '.join(sorted(keys.revoked))}"
        advice = "" if counting else "each key is revoked, so nothing that is signed can be opened: add the new one"
        yield Finding("trusted keys", "ok" if counting else "wrong", detail, advice)
