"""What is to go wrong in one try: the file that the injector (faults.c) reads, and what can go wrong at all."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HALF, KILL, HALF_KILL, TERM = -1, -2, -3, -4
"""Half of a read or a write; SIGKILL before the call, or amid a write; SIGTERM."""
HOWS = {"half": HALF, "kill": KILL, "half-kill": HALF_KILL, "term": TERM}
ERRORS: Mapping[str, tuple[str, ...]] = {
    "open": ("EIO", "EACCES", "EMFILE", "ENOSPC", "ESTALE", "EROFS"),
    "read": ("EIO", "ESTALE", "half"),
    "write": ("ENOSPC", "EIO", "EDQUOT", "half"),
    "close": ("EIO", "EDQUOT"),
    "stat": ("EIO", "EACCES", "ESTALE"),
    "list": ("EIO", "EACCES", "ESTALE"),
    "rename": ("ENOSPC", "EIO", "EACCES", "EXDEV"),
    "unlink": ("EIO", "EACCES", "EBUSY"),
    "mkdir": ("ENOSPC", "EACCES", "EMLINK"),
    "sync": ("EIO", "ENOSPC", "EDQUOT"),
    "mode": ("EPERM", "EROFS"),
    "lock": ("ENOLCK", "EIO"),
    "map": ("ENOMEM", "ENODEV"),
    "fork": ("EAGAIN", "ENOMEM"),
    "pipe": ("EMFILE",),
    "thread": ("EAGAIN",),
}
"""Kinds of calls, in the injector's order, and how each is made to fail."""
KINDS = tuple(ERRORS)
WRITES = ("open", "write", "close", "rename", "unlink", "mkdir", "sync", "mode", "lock")
"""Kinds at which a process is killed: what changes files, and what lies between."""
SOURCE = Path(__file__).with_name("faults.c")


class _Plan(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("how", ctypes.c_int32),
        ("sticky", ctypes.c_int32),
        ("fired", ctypes.c_int32),
        ("at", ctypes.c_int64),
        ("ahead_s", ctypes.c_int64),
        ("counts", ctypes.c_int64 * len(KINDS)),
        ("within", ctypes.c_char * 512),
        ("data", ctypes.c_char * 512),
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: a call, counted from 1 over all processes of a command, and how."""

    kind: str
    at: int
    how: str
    """An error's name, or one of ``HOWS``."""
    sticky: bool = False
    """Whether all later calls of the kind fail, too."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.at}:{self.how}{'+' * self.sticky}"

    @classmethod
    def of(cls, text: str) -> Fault:
        """The fault of a text, as ``str`` writes it."""
        kind, at, how = text.split(":")
        return cls(kind, int(at), how.removesuffix("+"), how.endswith("+"))

    @property
    def kills(self) -> bool:
        return self.how in ("kill", "half-kill")


def write(path: Path, within: Path, data: Path, fault: Fault | None = None, ahead_s: int = 0) -> None:
    """Write the file that the injector maps."""
    plan = _Plan(kind=-1, ahead_s=ahead_s, within=os.fsencode(within), data=os.fsencode(data))
    if fault:
        plan.kind, plan.at, plan.sticky = KINDS.index(fault.kind), fault.at, fault.sticky
        plan.how = HOWS.get(fault.how) or getattr(errno, fault.how)
    path.write_bytes(bytes(plan))


def read(path: Path) -> tuple[bool, dict[str, int]]:
    """Whether the fault happened, and how many calls of each kind there were."""
    plan = _Plan.from_buffer_copy(path.read_bytes())
    return plan.fired > 0, dict(zip(KINDS, plan.counts, strict=True))


def build(folder: Path) -> Path:
    """Compile the injector; its path."""
    library = folder / "faults.so"
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-O1", "-Wall", "-Wextra", "-Wno-nonnull-compare", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, "-o", library, SOURCE, "-ldl"], check=True)
    return library


def attach(plan: Path) -> None:
    """Have this process, into which the injector was preloaded, and what it starts, follow a plan from now on."""
    os.environ["TORTURE_PLAN"] = str(plan)
    if ctypes.CDLL(None).torture_plan(os.fsencode(plan)) != 0:
        raise OSError(f"{plan}: not mapped")
