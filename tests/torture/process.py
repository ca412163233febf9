"""A command as a process of its own: forked from one that has imported all commands, to its very end."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.torture import plan
from tests.torture.commands import Command


def start(command: Command, place: Path, todo: Path, talk: Path, umask: int = 0o022) -> int:
    """Start a command in a place, with a plan; its process, which leads a group of its own.

    What it says goes to ``talk`` with the suffixes ``.out`` and ``.err``.
    """
    child = os.fork()
    if child == 0:
        _become(command, place, todo, talk, umask)
    with suppress(OSError):  # the child does it, too: whoever is first
        os.setpgid(child, child)
    return child


def _become(command: Command, place: Path, todo: Path, talk: Path, umask: int) -> None:
    """Become the command, in a child; never returns."""
    status = 70
    try:
        os.setpgid(0, 0)
        for number, path in ((0, "/dev/null"), (1, talk.with_suffix(".out")), (2, talk.with_suffix(".err"))):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            handle = os.open(path, flags, 0o600)
            os.dup2(handle, number)
            os.close(handle)
        os.umask(umask)
        os.chdir(place / "work")
        os.environ.update(GEMMILL_STORE=str(place / "store"), TMPDIR=str(place / "tmp"), HOME=str(place))
        tempfile.tempdir = None
        sys.argv = ["gemmill", *command.argv]
        held = _descriptors()
        plan.attach(todo)
        status = _ended(command)
        if leaked := _descriptors() - held:
            sys.stderr.write(f"leaked {sorted(leaked)}\n")
    finally:
        os._exit(status)


def _ended(command: Command) -> int:
    """Run a command to the end of its interpreter; its exit code."""
    status = 0
    try:
        command.run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (as the interpreter does)
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:  # the interpreter says so, in its way
        sys.stderr.write(f"Exception ignored while flushing stdout: {error}\n")
        status = 120
    sys.stderr.flush()
    return status


def _descriptors() -> set[str]:
    """What this process has open, but for what libraries keep open until it ends."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # that of this listing
            continue
        if not re.match(r"/dev/|anon_inode:|socket:|pipe:.*\d{20}", target):
            found.add(f"{name} -> {target}")
    return found


def wait(child: int, seconds: float) -> int:
    """The exit code of a process, or minus its signal; it and what it started are killed when time is up."""
    until = time.monotonic() + seconds
    pause = 0.001
    while True:
        found, raw = os.waitpid(child, os.WNOHANG)
        if found or time.monotonic() > until:
            break
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # whoever outlives its parent
    if not found:
        _, raw = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(raw)


def said(talk: Path) -> tuple[str, str]:
    """What a command wrote to stdout and to stderr."""
    return talk.with_suffix(".out").read_text(errors="replace"), talk.with_suffix(".err").read_text(errors="replace")
