"""Starts fresh interpreters, with this one's modules and none of the working directory's, and ends them with it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gemmill.library.errors import InstallationError

_PAUSE_SECONDS = 0.2
# -P: nothing is imported from the working directory, which may hold modules of the same names as the library's.
_BOOT = "import sys; n = int(sys.argv[1]) + 2; sys.path[:] = sys.argv[2:n]; del sys.argv[1:n]\n"


def command(code: str, *arguments: str) -> list[str]:
    """The command line of a fresh interpreter that runs some code, which finds the arguments from ``sys.argv[1]`` on.

    Raises:
        InstallationError: this process is a frozen program, or an interpreter inside another, and has none to start.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        what = f"{sys.executable} is a frozen program" if sys.executable else "sys.executable is empty"
        raise InstallationError(
            f"compiling many kernels, and measuring, start Python interpreters, and there is none to start: {what}. "
            "Compile with `gemmill build` or `gemmill pack` where Python is installed, or one kernel at a time with "
            "Registry.get, which compiles in this process"
        )
    root = str(Path(__file__).parents[2])
    paths = [os.path.abspath(path) for path in sys.path if path]
    if root not in paths:
        paths.append(root)
    return [sys.executable, "-P", "-c", _BOOT + code, str(len(paths)), *paths, *arguments]


def end_with(parent: int, last: Callable[[], None] = lambda: None) -> None:
    """Have this process end, and do something last, once its parent has ended in whatever way; where no thread can
    be started to see that, it ends when its work does."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PAUSE_SECONDS)
        last()
        os._exit(1)

    with suppress(RuntimeError):
        threading.Thread(target=watch, daemon=True).start()
