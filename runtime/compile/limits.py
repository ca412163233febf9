"""What this process may use of its machine: processors and memory, within its cgroups of either version, and files.

A container on a large host sees all of its processors and memory; what it was given stands in files of the kernel's
(https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
"""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath

_SELF = Path("/proc/self")


def processors(process: Path = _SELF) -> int:
    """Processors that this process may keep busy: at least 1.

    Args:
        process: the folder of /proc that says which cgroups it is in.
    """
    most = float(len(os.sched_getaffinity(0)))
    for folder in _cgroups("cpu", process):
        words = _words(folder / "cpu.max")
        words = words or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):  # no limit is `max` or -1
            most = min(most, int(words[0]) / int(words[1]))
    return max(1, math.ceil(most))


def memory(process: Path = _SELF, machine: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of memory that this process may still take; None where nothing tells.

    Args:
        process: the folder of /proc that says which cgroups it is in.
        machine: the file of /proc that says how much memory is free.
    """
    left = [1024 * int(size) for size in re.findall(r"^MemAvailable:\s+(\d+) kB", _text(machine), re.MULTILINE)]
    for folder in _cgroups("memory", process):
        limits = [*_words(folder / "memory.max"), *_words(folder / "memory.limit_in_bytes")]
        used = [*_words(folder / "memory.current"), *_words(folder / "memory.usage_in_bytes")]
        # Pages of files are given back when memory is wanted.
        files = re.findall(r"^(?:total_)?(?:in)?active_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        for limit in filter(str.isdecimal, limits):
            taken = sum(map(int, filter(str.isdecimal, used))) - sum(map(int, files[-2:]))
            left.append(max(0, int(limit) - max(0, taken)))
    return min(left, default=None)


def too_few_files() -> str:
    """In words that this process may have too few files open for NVRTC, which opens headers within headers."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"NVRTC could not open a header: this process may have {most:,} files open, and NVRTC needs some 16 beside "
        "those that are open already; raise the limit, as `ulimit -n 1024` does in the shell that starts it"
    )


def _cgroups(controller: str, process: Path) -> Iterator[Path]:
    """Folders of the cgroups of a process that may limit it: its own, and those above."""
    paths = {
        name: path
        for line in _text(process / "cgroup").splitlines()
        if line.count(":") >= 2
        for _, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    for line in _text(process / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, *options = after.split() or [""]
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and controller not in options[-1].split(",")):
            continue
        path = paths.get(controller if kind == "cgroup" else "")
        if path is None:
            continue
        root, mount = (
            re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in before.split()[3:5]
        )
        # A container may see the path that its cgroup has on the host, and its folder mounted as the root.
        inner = PurePath(path).relative_to(root) if PurePath(path).is_relative_to(root) else PurePath()
        yield from (Path(mount, folder) for folder in (inner, *inner.parents))


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""
