"""Compiling where something is short, full or in the way: the kernel comes, and what is not gemmill's stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from resource import RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_NOFILE, setrlimit

import pytest
from tests.runtime.compile.processes import processes_of, python

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.runtime.compile import temporary
from gemmill.runtime.compile.pool import Outcome, compile_many
from gemmill.runtime.storage import file_locks
from gemmill.runtime.storage.artifact import Artifact

HOUR_AGO = time.time() - 3600


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What TMPDIR is."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def left_behind(name: str) -> Path:
    """A folder as a killed process leaves it, an hour ago."""
    made = temporary.TemporaryFolder("pool")
    made.path.rename(path := made.path.with_name(name))
    (path / "gemmill-pch-0_1_2_3_" / "0123456789abcdef").mkdir(parents=True)
    (path / "gemmill-pch-0_1_2_3_" / temporary.LOCK).touch()
    (path / "gemmill-pch-0_1_2_3_" / "0123456789abcdef" / "gemmill.pch").touch()
    (path / "edg0_123").touch()
    assert made._lock is not None
    file_locks.release(made._lock)
    os.utime(path, (HOUR_AGO, HOUR_AGO))
    return path


def test_what_a_killed_process_left_is_swept(folder: Path) -> None:
    left_behind("gemmill-pool-abcd_123")
    (folder / "gemmill-pch-abcd_456").mkdir()  # killed before it had locked it
    os.utime(folder / "gemmill-pch-abcd_456", (HOUR_AGO, HOUR_AGO))
    temporary.sweep()
    assert not list(folder.iterdir())


def test_folders_of_somebodys_are_not_swept_whatever_they_are_called(folder: Path, tmp_path: Path) -> None:
    mine = [folder / name for name in ("gemmill-pch-results", "gemmill-pool-abcd_1234", "gemmill-pch-abcd_123")]
    for path in mine:
        path.mkdir()
        (path / "thesis.txt").write_text("mine")
        os.utime(path, (HOUR_AGO, HOUR_AGO))
    own = left_behind("gemmill-pool-abcd_999")
    (own / "thesis.txt").write_text("mine")
    linked = left_behind("gemmill-pool-abcd_000").rename(tmp_path / "linked")
    (folder / "gemmill-pool-abcd_000").symlink_to(linked)
    (own / "0123456789abcdef").symlink_to(linked)
    os.utime(own, (HOUR_AGO, HOUR_AGO))
    before = sorted(linked.rglob("*"))
    temporary.sweep()
    assert [path.read_text() for path in sorted(folder.glob("*/thesis.txt"))] == ["mine"] * 4
    assert sorted(linked.rglob("*")) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_a_folder_that_another_clock_sweeps_is_made_again(folder: Path) -> None:
    """To a process whose clock is ahead a folder that is being made, and is not locked yet, is one that was left."""
    swept, making, ended = [0], threading.Event(), threading.Event()

    def sweep() -> None:
        while not ended.is_set():
            for path in folder.glob("gemmill-pool-*") if making.wait(0.1) else ():
                with suppress(OSError):
                    path.rmdir()
                    swept[0] += 1
                    ended.wait(0.02)

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        until = time.monotonic() + 60
        while swept[0] < 3 and time.monotonic() < until:
            making.set()
            made = temporary.TemporaryFolder("pool")
            making.clear()
            made.remove()
    finally:
        ended.set()
        thread.join()
    assert swept[0], "nothing came between"


def test_what_another_user_left_is_not_swept(folder: Path) -> None:
    path = left_behind("gemmill-pool-abcd_123")
    os.chown(path, 4242, 4242)
    temporary.sweep()
    assert path.is_dir()


MANY = """
import sys
from gemmill.library.config.names import parse_name
from gemmill.runtime.compile import pch, pool
if "no processes" in sys.argv: sys.frozen = True
if "no room" in sys.argv: pch.ROOM_BYTES = 1 << 60
[outcome] = pool.compile_many([parse_name(sys.argv[1])], jobs=3)
print(outcome.error or outcome.artifact.digest, outcome.pch)
"""


def test_where_no_process_starts_and_no_header_has_room_this_process_compiles_without(
    artifact: Artifact, tmp_path: Path
) -> None:
    done = python(MANY, artifact.name, "no processes", "no room", TMPDIR=str(tmp_path))
    assert done.stdout.split() == [artifact.digest, "none"], done.stderr
    assert "compiling in this process, because no worker can be started" in done.stderr
    assert f"1 of 1 processes compile without precompiled headers, which takes longer: {tmp_path} has " in done.stderr
    assert "set TMPDIR to a larger folder" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("before", "environ"),
    [
        (partial(setrlimit, RLIMIT_AS, (800 << 20, 800 << 20)), {}),
        (partial(setrlimit, RLIMIT_FSIZE, (1 << 20, 1 << 20)), {}),
        (partial(setrlimit, RLIMIT_NOFILE, (24, 24)), {}),
        (partial(os.umask, 0o777), {}),
        (None, {"PYTHONWARNINGS": "error"}),
    ],
    ids=["memory", "file size", "descriptors", "umask", "warnings"],
)
def test_low_limits_cost_no_kernel(
    before: Callable[[], object] | None, environ: dict[str, str], artifact: Artifact, tmp_path: Path
) -> None:
    done = python(MANY, artifact.name, before=before, TMPDIR=str(tmp_path), **environ)
    assert done.stdout.split()[:1] == [artifact.digest], done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_too_few_files_are_named_with_the_way_to_more(tmp_path: Path) -> None:
    code = (
        "from resource import *; from gemmill.emitters.emit import emit; from tests.runtime.conftest import *\n"
        "from gemmill.runtime.compile.compiler import Compiler\n"
        "config = parse_name(NAMES[0]); compiler = Compiler(); source = emit(config)\n"
        "setrlimit(RLIMIT_NOFILE, (10, 10)); compiler.compile(source, config)"
    )
    done = python(code, TMPDIR=str(tmp_path))
    assert "may open 10 files" in done.stderr
    assert "`ulimit -n 1024`" in done.stderr


@pytest.mark.heavy
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("size", ["64k", "8m", "100m", "200m", "300m"])
def test_a_temporary_folder_of_any_size_will_do(size: str, artifact: Artifact, tmp_path: Path) -> None:
    inside = f"mount -t tmpfs -o size={size} tmpfs {tmp_path} && exec " + '"$@"'
    command = ["unshare", "-m", "bash", "-c", inside, "", sys.executable, "-c", MANY, artifact.name]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    if "mount:" in done.stderr or "unshare" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.stdout.split() == [artifact.digest, "none"], done.stderr


@pytest.mark.heavy
def test_a_worker_that_its_header_kills_is_followed_by_one_without(configs: tuple[GemmConfig, ...]) -> None:
    """As by SIGBUS where TMPDIR is memory, and has filled up since there was room."""
    asked = [replace(configs[0], stages=stages) for stages in (3, 4, 5)]
    killed: list[int] = []

    def kill(outcome: Outcome) -> None:
        if not killed:
            body = b"compile.compile_worker"
            killed.extend(p for p in processes_of(os.getpid()) if body in Path(f"/proc/{p}/cmdline").read_bytes())
            for pid in killed:
                os.kill(pid, signal.SIGBUS)

    outcomes = compile_many(asked, jobs=1, on_done=kill)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [outcome.pch for outcome in outcomes] == ["created", "none", "none"]


FORK = """
import os, sys, threading
from gemmill.library.config.names import parse_name
from gemmill.runtime.registry import Registry
registry = Registry(manifests=(), store=sys.argv[1])
thread = threading.Thread(target=registry.get, args=[sys.argv[2]])
thread.start()
while thread.is_alive() and not os.path.exists(sys.argv[1] + "/locks"): pass  # the thread holds the locks
if (child := os.fork()) == 0:
    print("child", registry.get(sys.argv[3]).name, flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join()
print("parent", registry.get(sys.argv[3]).name)
"""


@pytest.mark.heavy
def test_a_process_that_is_forked_while_a_thread_compiles_can_compile(
    configs: tuple[GemmConfig, ...], tmp_path: Path
) -> None:
    names = [kernel_name(replace(configs[0], stages=stages)) for stages in (3, 5)]
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path / "store"), *names],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [f"child {names[1]}", f"parent {names[1]}"]
