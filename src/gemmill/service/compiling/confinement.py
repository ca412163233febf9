"""Sandbox the current process permanently, before it reads untrusted input.

Landlock denies TCP and all files outside the named folders. seccomp denies sockets, other processes and signals.
Resource limits bound memory and time. If the Linux kernel lacks one of these, the result is an error, never a partial
sandbox.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gemmill.library.errors import InstallationError

FILES = 64
"""Limit of open files; NVRTC opens about 16 nested headers."""

# From <linux/landlock.h>; the system call numbers are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _READ_FILE, _READ_DIR = 1, 1, 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""The first version of Landlock with a number of file access rights, and that number."""
_NET_RIGHTS, _SCOPES = (4, 0b11), (6, 0b11)
"""The first version of Landlock with these restrictions, and their bits: TCP; abstract sockets and signals."""

# From <linux/prctl.h>, <linux/seccomp.h>, <linux/bpf_common.h> and <linux/audit.h>.
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _SET_DEATH_SIGNAL, _FILTER = 38, 22, 1, 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050001  # the last one fails with EPERM
_INSTRUCTION = struct.Struct("=HBBI")
_X32 = 0x40000000
"""System call numbers from here on belong to the x32 ABI, which the list below does not cover."""
_CALLS = (
    *("socket", "socketpair", "io_uring_setup", "clone", "clone3", "fork", "vfork", "execve", "execveat", "kill"),
    *("tkill", "tgkill", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open", "pidfd_send_signal"),
    *("pidfd_getfd", "bpf", "perf_event_open", "add_key", "request_key", "keyctl"),
)
"""Denied system calls: those that reach other processes, and those that create processes or threads."""
_MACHINES = {
    "x86_64": (
        0xC000003E,
        *(41, 53, 425, 56, 435, 57, 58, 59, 322, 62),
        *(200, 234, 101, 310, 311, 434, 424, 438, 321, 298, 248, 249, 250),
    ),
    "aarch64": (
        0xC00000B7,
        *(198, 199, 425, 220, 435, None, None, 221, 281, 129),
        *(130, 131, 117, 270, 271, 434, 424, 438, 280, 241, 217, 218, 219),
    ),
}
"""By architecture: its audit number, then the numbers of the calls above; None if it lacks a call."""

_libc = ctypes.CDLL(None, use_errno=True)


def confine(readable: Sequence[Path], memory: int, seconds: int) -> None:
    """Sandbox this process: it can only read files of some folders, compute, and use files that are already open.

    The process must have one thread, since other threads would keep their privileges.

    Args:
        readable: folders that the process may read.
        memory: limit of the address space, in bytes.
        seconds: limit of processor time.

    Raises:
        InstallationError: this machine does not support the sandbox, or the sandbox is not effective.
        OSError: a folder cannot be opened.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise InstallationError("cannot sandbox a process with several threads")
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    _prctl(_NO_NEW_PRIVILEGES, 1)
    limits = {"AS": memory, "CPU": seconds, "NOFILE": FILES, "FSIZE": 0, "CORE": 0, "NPROC": 0}
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    _leave_files(readable)
    _leave_calls()
    _try()


def _leave_files(readable: Sequence[Path]) -> None:
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        raise InstallationError("Landlock is not available; it requires Linux 5.13 or newer with Landlock enabled")
    rights = (1 << max(bits for since, bits in _FILE_RIGHTS.items() if since <= version)) - 1
    net, scopes = (all_of if since <= version else 0 for since, all_of in (_NET_RIGHTS, _SCOPES))
    attributes = struct.pack("=QQQ", rights, net, scopes)
    rules = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        raise _failed("landlock_create_ruleset")
    for folder in readable:
        handle = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", _READ_FILE | _READ_DIR, handle)
        if _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0):
            raise _failed(f"landlock_add_rule {folder}")
        os.close(handle)
    if _libc.syscall(_RESTRICT_SELF, rules, 0):
        raise _failed("landlock_restrict_self")
    os.close(rules)


def _leave_calls() -> None:
    if (machine := _MACHINES.get(platform.machine())) is None:
        supported = " or ".join(_MACHINES)
        raise InstallationError(f"the sandbox does not support {platform.machine()}; use {supported}")
    audit, *numbers = machine
    denied = [number for number in numbers if number is not None]
    program = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    program += [(_IF_AT_LEAST, len(denied) + 1, 0, _X32)]
    program += [(_IF_EQUAL, len(denied) - i, 0, number) for i, number in enumerate(denied)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL)]
    code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*line) for line in program))
    _prctl(_SET_SECCOMP, _FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _try() -> None:
    """Test the sandbox: InstallationError if a denied operation still works."""
    for operation, attempt in (
        ("read files", lambda: os.open(os.path.realpath("/proc/self/maps"), os.O_RDONLY)),
        ("read folders", lambda: os.listdir("/")),
        ("write files", lambda: os.open("left", os.O_WRONLY | os.O_CREAT)),
        ("open sockets", lambda: socket.socket(socket.AF_UNIX)),
        ("send signals", lambda: os.kill(os.getppid(), 0)),
        ("start processes", os.fork),
    ):
        with suppress(PermissionError):
            attempt()
            raise InstallationError(f"the sandbox is not effective: the process can still {operation}")


def _prctl(option: int, *arguments: int | bytes) -> None:
    padded = [ctypes.c_ulong(x) if isinstance(x, int) else x for x in (*arguments, *([0] * (4 - len(arguments))))]
    if _libc.prctl(option, *padded):
        raise _failed(f"prctl {option}")


def _failed(operation: str) -> InstallationError:
    return InstallationError(f"{operation}: {os.strerror(ctypes.get_errno())}")
