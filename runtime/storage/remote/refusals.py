"""What the refusals of an HTTP server mean: a reason by status, the pause that it asks for, the words of its error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_STATUS: Mapping[int, str] = {
    401: "unauthorised",
    403: "forbidden",  # also the answer of file servers for a missing file without permission to list
    404: "absent",
    405: "absent",
    409: "version",
    410: "absent",
    429: "busy",
    501: "absent",
    503: "busy",
    507: "full",
}
"""Reasons by status, in addition to those for whole hundreds."""
_HUNDREDS: Mapping[int, str] = {3: "redirected", 5: "server error"}


def reason_of(status: int) -> str:
    """Return the reason, one of :data:`~gemmill.runtime.storage.remote.misses.REASONS`, of a status other than 2xx."""
    return _STATUS.get(status) or _HUNDREDS.get(status // 100, "unexpected")


def pause_of(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None where it is missing or invalid."""
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None


def words_of(error: Any) -> str:
    """Return code and message of an error, as the end of a sentence. They are escaped, since a remote must not control
    the terminal."""
    if not isinstance(error, dict):
        return ""
    code, message = (str(error.get(name, "")) for name in ("code", "message"))
    return f" ({code!r:.40}: {message!r:.300})" if code or message else ""
