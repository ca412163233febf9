"""Fresh interpreters that run some code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


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


def processes_of(pid: int) -> set[int]:
    """Processes that any thread of a process started."""
    children = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return {int(child) for found in children for child in found}
