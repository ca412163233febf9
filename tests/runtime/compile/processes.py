"""Fresh interpreters that run some code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable


def python(
    code: str, *arguments: str, before: Callable[[], object] | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """What a process with more variables says; ``before`` is called in it first."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )
