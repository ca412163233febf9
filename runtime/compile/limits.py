"""Limits of this process: processors and memory, within cgroups of either version, and open files.

A container on a large host sees all of the host's processors and memory; its own limits are in files of the kernel
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
    """Return how many processors this process may use: at least 1.

    Args:
        process: folder in /proc that names its cgroups.
    """
    most = float(len(os.sched_getaffinity(0)))
    for folder in _cgroups("cpu", process):
        words = _words(folder / "cpu.max")
        words = words or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):  # `max` or -1 is no limit
            most = min(most, int(words[0]) / int(words[1]))
    return max(1, math.ceil(most))


def memory(process: Path = _SELF, machine: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes of memory that this process may still use; None where that is unknown.

    Args:
        process: folder in /proc that names its cgroups.
        machine: file in /proc with the free memory.
    """
    free_bytes = [1024 * int(size) for size in re.findall(r"^MemAvailable:\s+(\d+) kB", _text(machine), re.MULTILINE)]
    for folder in _cgroups("memory", process):
        limits = [*_words(folder / "memory.max"), *_words(folder / "memory.limit_in_bytes")]
        used = [*_words(folder / "memory.current"), *_words(folder / "memory.usage_in_bytes")]
        # The system frees pages of files when memory is needed.
        files = re.findall(r"^(?:total_)?(?:in)?active_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        for limit in filter(str.isdecimal, limits):
            used_bytes = sum(map(int, filter(str.isdecimal, used))) - sum(map(int, files[-2:]))
            free_bytes.append(max(0, int(limit) - max(0, used_bytes)))
    return min(free_bytes, default=None)


def too_few_files() -> str:
    """Return the message for too few open files: NVRTC opens headers within headers."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"NVRTC could not open a header: this process may open {most:,} files, and NVRTC needs about 16 in addition to "
        "those that are open; raise the limit with `ulimit -n 1024` in the shell that starts it"
    )


def _cgroups(controller: str, process: Path) -> Iterator[Path]:
    """Yield the folders of the cgroups that may limit a process: its own, and those above."""
    paths = {
        name: path
        for line in _text(process / "cgroup").splitlines()
        if line.count(":") >= 2
        for _, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    for line in _text(process / "mountinfo").splitlines():
        mount_fields, _, file_system = line.partition(" - ")
        kind, *options = file_system.split() or [""]
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and controller not in options[-1].split(",")):
            continue
        path = paths.get(controller if kind == "cgroup" else "")
        if path is None:
            continue
        root, mount = (
            re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in mount_fields.split()[3:5]
        )
        # A container may see its cgroup's path on the host, while its folder is mounted as the root.
        inner = PurePath(path).relative_to(root) if PurePath(path).is_relative_to(root) else PurePath()
        yield from (Path(mount, folder) for folder in (inner, *inner.parents))


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""
