"""What is said of where a call goes: to whoever asks, and where it is much slower than it need be once a process."""

from __future__ import annotations

import sys
import warnings

from gemmill.library.errors import SlowPathWarning
from gemmill.runtime.launch.launcher import PreparedCall
from gemmill.runtime.select.choice import Choice

_said: set[str] = set()
"""Kinds of changes that were advised."""


def explain(prepared: PreparedCall) -> None:
    """Print the problem of a call, its kernel and why it goes there."""
    sys.stdout.write(f"gemmill: {prepared}\n")


def warn_of(choice: Choice) -> None:
    """Warn of a choice whose problem takes a slow path, unless all that would change it was advised before."""
    if (path := choice.slow_path) is None or {change.kind for change in path.changes} <= _said:
        return
    warnings.warn(
        f"{choice.problem}: {path}. This is said once a process; plan(...).choice.why, and explain=True, say it of any "
        "call",
        SlowPathWarning,
        stacklevel=_callers_level(),
    )
    _said.update(change.kind for change in path.changes)  # not where the filters made an error of it


def _callers_level() -> int:
    """How far up the stack, from who asks, whoever called gemmill is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("gemmill."):
        level, frame = level + 1, frame.f_back
    return level
