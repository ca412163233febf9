"""Processors and memory, as the files of the kernel tell them; those of containers here are files like theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmill.runtime.compile import limits, pool

GIB = 1 << 30


def written(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """A process's folder in /proc; tests add the cgroups."""
    path = tmp_path / "proc"
    written(path, {"meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable:  {32 << 20} kB\n"})
    return path


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


def left(process: Path) -> int | None:
    return limits.memory(process, process / "meminfo")


def test_without_cgroups_there_is_what_the_machine_has(process: Path) -> None:
    assert limits.processors(process) == 64
    assert left(process) == 32 * GIB
    assert limits.memory(process / "none", process / "none") is None


def version_2(process: Path, path: str = "/pod/box", root: str = "/") -> Path:
    mount = process.parent / "cgroups of v2"
    mounted = str(mount).replace(" ", r"\040")
    written(
        process,
        {
            "cgroup": f"0::{path}\n",
            "mountinfo": f"29 23 0:26 {root} {mounted} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
            "30 23 0:27 / /proc rw - proc proc rw\nnonsense\n",
        },
    )
    return mount


def test_version_2_limits_by_every_group_above(process: Path) -> None:
    mount = version_2(process)
    written(mount, {"pod/box/cpu.max": "max 100000\n", "pod/box/memory.max": "max\n"})
    assert (limits.processors(process), left(process)) == (64, 32 * GIB)
    written(mount, {"pod/cpu.max": "250000 100000\n", "pod/memory.max": f"{4 * GIB}\n"})
    written(mount, {"pod/memory.current": f"{3 * GIB}\n"})
    assert (limits.processors(process), left(process)) == (3, GIB)
    written(mount, {"pod/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\n"})
    assert left(process) == GIB + 3 * GIB // 4, "pages of files are given back"
    written(mount, {"pod/box/cpu.max": "10000 100000\n", "pod/memory.current": f"{9 * GIB}\n"})
    assert (limits.processors(process), left(process)) == (1, 0)


@pytest.mark.parametrize("path", ["/docker/abc", "/", "/../elsewhere"])
def test_a_group_that_is_mounted_as_the_root_is_found(path: str, process: Path) -> None:
    mount = version_2(process, path, root="/docker/abc" if path == "/docker/abc" else "/")
    written(mount, {"cpu.max": "200000 100000\n", "memory.max": f"{GIB}\n", "memory.current": "0\n"})
    assert (limits.processors(process), left(process)) == (2, GIB)


def test_version_1_has_a_mount_for_each_controller(process: Path) -> None:
    mounts = process.parent
    written(
        process,
        {
            "cgroup": "11:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n1:name=systemd:/docker/x\n0::/\n",
            "mountinfo": f"32 31 0:29 / {mounts}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
            f"35 31 0:32 / {mounts}/memory rw - cgroup cgroup rw,memory\n"
            f"41 31 0:38 / {mounts}/unified rw - cgroup2 cgroup2 rw\n",
        },
    )
    written(mounts, {"cpu/docker/x/cpu.cfs_quota_us": "-1\n", "cpu/docker/x/cpu.cfs_period_us": "100000\n"})
    written(mounts, {"memory/docker/x/memory.limit_in_bytes": f"{2 * GIB}\n", "memory/docker/x/memory.stat": "\n"})
    written(mounts, {"memory/docker/x/memory.usage_in_bytes": f"{GIB}\n"})
    assert (limits.processors(process), left(process)) == (64, GIB)
    written(mounts, {"cpu/docker/x/cpu.cfs_quota_us": "150000\n"})
    stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {GIB // 2}\ntotal_active_file 0\n"
    written(mounts, {"memory/docker/x/memory.stat": stat})
    assert (limits.processors(process), left(process)) == (2, GIB + GIB // 2)


@pytest.mark.parametrize(("memory", "jobs"), [(None, 6), (0, 1), (pool.MEMORY_BYTES * 2, 2), (1 << 50, 6)])
def test_as_many_compile_as_there_are_processors_and_memory(
    memory: int | None, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "processors", lambda: 6)
    monkeypatch.setattr(limits, "memory", lambda: memory)
    assert pool.default_jobs() == jobs
    monkeypatch.setenv("GEMMILL_JOBS", "9")
    assert pool.default_jobs() == 9
