"""Finds the Python interpreter that worker processes run.

In a program that embeds Python, ``sys.executable`` may be that program, which must not be started again, the first
``python3`` in PATH, or empty. Programs are started to check them only if their names are like those of interpreters.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from gemmill.library.errors import InstallationError

_LIKELY_NAMES = re.compile(r"python|pypy")
"""In names of interpreters, such as ``pvpython``, but also of programs that embed Python, such as ``python-host``."""
_USUAL_NAMES = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
_SECONDS = 30.0
"""Time for an interpreter to start."""


def interpreter() -> str:
    """Return the path of the interpreter of this process or, in another program, of one with the same build of Python.

    Raises:
        InstallationError: there is none, as in frozen programs.
    """
    if getattr(sys, "frozen", False):
        raise _missing(f"{sys.executable} is a frozen program")
    if (found := _found(sys.executable or "")) is not None:
        return found
    where = f"neither that nor {sys.exec_prefix}/bin has the interpreter of this program"
    raise _missing(f"sys.executable is {sys.executable or 'empty'}, and {where}, Python {sys.version.split()[0]}")


def _missing(why: str) -> InstallationError:
    return InstallationError(
        f"compiling several kernels and measuring need to start Python interpreters, but none was found: {why}. "
        "Run `gemmill build` or `gemmill pack` where Python is installed, or compile one kernel at a time with "
        "Registry.get, which compiles in this process"
    )


@cache
def _found(executable: str) -> str | None:
    """Return the interpreter of a process with some ``sys.executable``; None where there is none."""
    if _USUAL_NAMES.fullmatch(os.path.basename(executable)):
        with suppress(OSError):
            if os.path.samefile(executable, "/proc/self/exe"):
                return executable
    return next((path for path in dict.fromkeys(_candidates(executable)) if _is_of_this_build(path)), None)


def _candidates(executable: str) -> Iterator[str]:
    """Yield paths that may be interpreters."""
    for path in (executable, getattr(sys, "_base_executable", "")):
        if _LIKELY_NAMES.search(os.path.basename(path or "")):
            yield path
    for prefix in (sys.exec_prefix, sys.base_exec_prefix):
        for name in (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3"):
            yield os.path.join(prefix, "bin", name)


def _is_of_this_build(path: str) -> bool:
    """Whether a program is an interpreter that can import what this process can."""
    command = [path, "-P", "-c", "import sys; sys.stdout.write(sys.version)"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        return done.stdout == sys.version
    return False
