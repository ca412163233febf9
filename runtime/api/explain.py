"""Reports the choice of a kernel: on request with ``explain=True``, and as a warning, once per process, for a slow
path."""

from __future__ import annotations

import sys
import warnings

from gemmill.library.errors import SlowPathWarning
from gemmill.runtime.launch.launcher import PreparedCall
from gemmill.runtime.select.choice import Choice

_warned_kinds: set[str] = set()
"""Kinds of changes that a warning has suggested already."""


def explain(prepared: PreparedCall) -> None:
    """Print the problem of a call, its kernel and the reason of the choice."""
    sys.stdout.write(f"gemmill: {prepared}\n")


def warn_of(choice: Choice) -> None:
    """Warn that a problem takes a slow path, unless earlier warnings suggested all the same kinds of changes."""
    if (path := choice.slow_path) is None or {change.kind for change in path.changes} <= _warned_kinds:
        return
    warnings.warn(
        f"{choice.problem}: {path}. gemmill warns once per process; plan(...).choice.why and explain=True report this "
        "for any call",
        SlowPathWarning,
        stacklevel=_callers_level(),
    )
    # Not reached where a filter turns the warning into an error.
    _warned_kinds.update(change.kind for change in path.changes)


def _callers_level() -> int:
    """Return the stack level of the caller of gemmill, for ``warnings.warn``."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("gemmill."):
        level, frame = level + 1, frame.f_back
    return level
