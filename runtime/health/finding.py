"""One line of what the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    what: str
    state: Literal["ok", "missing", "wrong"]
    """``missing``: something gemmill works without, as far as that goes. ``wrong``: something that does not work."""
    detail: str
    advice: str = ""
    """What to install or change."""
