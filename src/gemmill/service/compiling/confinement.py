"""A process gives up its rights, for good, before it looks at what somebody sent.

Landlock takes the files away, but for folders that are named, and TCP; seccomp the other ways out: sockets, other
processes, signals; resource limits what is left, memory and time. What a kernel lacks of it is an error: there is no
half of a confinement.
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
"""Descriptors that a confined process may have: NVRTC opens headers within headers, some 16."""

# Of <linux/landlock.h>; the numbers of its calls are the same on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _READ_FILE, _READ_DIR = 1, 1, 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Kinds of access to files that a version of Landlock knows, from it on."""
_NET_RIGHTS, _SCOPES = (4, 0b11), (6, 0b11)
"""The version that knows them, and all there are: TCP; abstract sockets and signals of others."""

# Of <linux/prctl.h>, <linux/seccomp.h>, <linux/bpf_common.h> and <linux/audit.h>.
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _SET_DEATH_SIGNAL, _FILTER = 38, 22, 1, 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050001  # the last: with EPERM
_INSTRUCTION = struct.Struct("=HBBI")
_X32 = 0x40000000
"""Numbers from here on are calls of another ABI, which the list below has not."""
_CALLS = (
    *("socket", "socketpair", "io_uring_setup", "clone", "clone3", "fork", "vfork", "execve", "execveat", "kill"),
    *("tkill", "tgkill", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open", "pidfd_send_signal"),
    *("pidfd_getfd", "bpf", "perf_event_open", "add_key", "request_key", "keyctl"),
)
"""What fails: all that reaches others, or begins another process or thread."""
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
"""What a machine is called in a filter, and the numbers of the calls; None where it has no such call."""

_libc = ctypes.CDLL(None, use_errno=True)


def confine(readable: Sequence[Path], memory: int, seconds: int) -> None:
    """Leave this process nothing but to read files of some folders, to compute, and to use what it has open.

    It must have one thread: another would keep its rights.

    Args:
        readable: folders.
        memory: bytes of address space.
        seconds: of processor time.

    Raises:
        InstallationError: this machine cannot do it, or what it did does not hold.
        OSError: a folder cannot be opened.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise InstallationError("a process of several threads cannot be confined")
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
        raise InstallationError("this Linux has no Landlock (5.13 or newer, built in and not disabled)")
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
        raise InstallationError(f"calls of {platform.machine()} cannot be told apart; {' and '.join(_MACHINES)} can")
    audit, *numbers = machine
    denied = [number for number in numbers if number is not None]
    program = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    program += [(_IF_AT_LEAST, len(denied) + 1, 0, _X32)]
    program += [(_IF_EQUAL, len(denied) - i, 0, number) for i, number in enumerate(denied)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL)]
    code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*line) for line in program))
    _prctl(_SET_SECCOMP, _FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _try() -> None:
    """InstallationError where this process can still do what it has just given up."""
    for what, attempt in (
        ("read files", lambda: os.open(os.path.realpath("/proc/self/maps"), os.O_RDONLY)),
        ("read folders", lambda: os.listdir("/")),
        ("write files", lambda: os.open("left", os.O_WRONLY | os.O_CREAT)),
        ("open sockets", lambda: socket.socket(socket.AF_UNIX)),
        ("send signals", lambda: os.kill(os.getppid(), 0)),
        ("begin processes", os.fork),
    ):
        with suppress(PermissionError):
            attempt()
            raise InstallationError(f"a process that was confined can {what}")


def _prctl(option: int, *arguments: int | bytes) -> None:
    padded = [ctypes.c_ulong(x) if isinstance(x, int) else x for x in (*arguments, *([0] * (4 - len(arguments))))]
    if _libc.prctl(option, *padded):
        raise _failed(f"prctl {option}")


def _failed(what: str) -> InstallationError:
    return InstallationError(f"{what}: {os.strerror(ctypes.get_errno())}")
