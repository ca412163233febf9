"""The folder of a store: what gemmill did not put there stays, whatever it is called, and is not followed."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from gemmill.library.errors import StoreError, StoreWarning
from gemmill.runtime.storage import file_locks
from gemmill.runtime.storage import store as store_module
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.folder import MARK, StoreFolder
from gemmill.runtime.storage.store import Store

ROOT = os.getuid() == 0


def fail() -> Artifact:
    raise AssertionError("the store had it")


@pytest.fixture
def mine(tmp_path: Path) -> list[Path]:
    """Files of the user's, some of whose names are almost those of a store."""
    key = "ab" + "0" * 62
    names = ("notes.txt", "declared/contracts.json", f"declared/{key}.txt", "autotuned/results.csv", "ab/model.gemmill")
    more = (f"ab/{key[1:]}.gemmill", f"cd/{key}.gemmill", f"abc/{key}.gemmill", "locks/keys.lock", "v1/x.gemmill")
    paths = [tmp_path / "store" / name for name in (*names, *more, f"{key}.gemmill", f"ab/{key}.gemmill.txt")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (1000, 1000))
    return paths


def untouched(paths: list[Path]) -> bool:
    return all(path.read_text() == "mine" for path in paths)


def test_a_folder_of_somebodys_files_is_neither_emptied_nor_written_to(
    mine: list[Path], store: Store, artifact: Artifact
) -> None:
    before = sorted(store.path.rglob("*"))
    for change in (store.clear, store.prune):
        with pytest.raises(StoreError, match=r"is not a gemmill store: it holds .*; nothing was removed"):
            change()
    with pytest.warns(StoreWarning, match="is not a gemmill store.*use an empty or a new folder"):
        assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert sorted(store.path.rglob("*")) == before
    assert untouched(mine)


def test_a_store_loses_nothing_but_what_is_its_own(store: Store, entry: Path, mine: list[Path]) -> None:
    store.put_note("declared", "0" * 64, b"{}")
    assert Store(store.path, max_bytes=1).prune() == 1
    store.put_note("autotuned", "0" * 64, b"{}")
    assert store.clear() == 0
    assert not entry.exists()
    with pytest.raises(FileNotFoundError):
        store.get_note("autotuned", "0" * 64)
    assert untouched(mine)


@pytest.mark.parametrize("beside", ["", "lost+found"])
def test_a_store_of_before_gets_the_mark(beside: str, store: Store, entry: Path, artifact: Artifact) -> None:
    (store.path / MARK).unlink()
    if beside:
        (store.path / beside).mkdir()
    assert store.get_or_make(artifact.key, fail) == (artifact, True)
    assert store.clear() == 1
    store.put(artifact.key, artifact)
    assert (store.path / MARK).read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n# gemmill")
    assert entry.is_file()


def test_the_mark_of_another_program_is_none(store: Store, artifact: Artifact) -> None:
    store.path.mkdir()
    (store.path / MARK).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of another program\n")
    with pytest.warns(StoreWarning, match=f"holds {MARK}"):
        store.put(artifact.key, artifact)
    assert [path.name for path in store.path.iterdir()] == [MARK]


@pytest.mark.parametrize("place", ["entry", "folder", "locks", "lock", "mark", "note"])
def test_no_link_within_is_followed(
    place: str, store: Store, entry: Path, artifact: Artifact, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    store.put_note("autotuned", artifact.key, b"{}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    paths = {
        "entry": entry,
        "folder": entry.parent,
        "locks": store.path / "locks",
        "lock": store.path / "locks" / f"{artifact.key[:3]}.lock",
        "mark": store.path / MARK,
        "note": store.path / "autotuned" / f"{artifact.key}.json",
    }
    with store.hold_lock(artifact.key):
        pass
    target = elsewhere / paths[place].name
    paths[place].rename(target)
    paths[place].symlink_to(target)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    for used in (store, Store(store.path, max_bytes=1), store):
        assert used.get_or_make(artifact.key, lambda: artifact)[0] == artifact
        used.put_note("autotuned", artifact.key, b"[]")
        used.put(artifact.key, artifact)
    with pytest.raises(StoreError, match="is a link") if place == "mark" else nullcontext():
        store.clear()
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:  # by a short name: those of sockets are at most 107 bytes
        here = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/{path.name[:8]}")
        (path.parent / path.name[:8]).rename(path)
        os.close(here)


def as_loop(path: Path) -> None:
    path.symlink_to(path)


def as_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def as_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("odd", [as_pipe, as_socket, as_loop, as_sparse, as_folder])
def test_what_is_no_entry_is_a_miss_and_replaced(
    odd: Callable[[Path], None], store: Store, entry: Path, artifact: Artifact
) -> None:
    entry.unlink()
    odd(entry)
    assert store.get(artifact.key) is None
    assert list(store.verify()) == [entry]
    assert not store.holds(artifact.key) or odd is as_sparse
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert store.get_or_make(artifact.key, fail) == (artifact, True)
    entry.unlink()
    odd(entry)
    assert store.clear() == 1
    assert not os.path.lexists(entry)


def test_what_others_may_write_to_is_a_miss_and_replaced(store: Store, entry: Path, artifact: Artifact) -> None:
    for mode in (0o620, 0o602):
        entry.chmod(mode)
        assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert entry.stat().st_mode & 0o777 == 0o600
    entry.chmod(0o644)
    assert store.get_or_make(artifact.key, fail) == (artifact, True)


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_an_entry_of_another_user_is_a_miss_and_replaced(store: Store, entry: Path, artifact: Artifact) -> None:
    os.chown(entry, 4242, 4242)
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert entry.stat().st_uid == os.getuid()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_store_is_private_whatever_the_umask(umask: int, artifact: Artifact, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "above" / "store")
        assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
        store.put_note("autotuned", artifact.key, b"{}")
    finally:
        os.umask(before)
    for path in (tmp_path / "above").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.stat().st_mode & 0o600 == 0o600 or path.suffix == ".lock", path
    assert store.get_or_make(artifact.key, fail) == (artifact, True)


@pytest.mark.parametrize("days", [400, 400_000, -40_000])
def test_absurd_times_are_the_oldest_and_what_was_just_written_stays(
    days: int, store: Store, entry: Path, artifacts: tuple[Artifact, ...]
) -> None:
    for i in range(3):
        path = store.path / "ab" / f"ab{i:062x}.gemmill"
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(entry, path)
        os.utime(path, (time.time() + days * 86400,) * 2)
    assert [found.used for found in store.list()][:3] == [0, 0, 0]
    size = entry.stat().st_size
    small = Store(store.path, max_bytes=3 * size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small.put(artifacts[1].key, artifacts[1])
    assert small.get(artifacts[1].key) == artifacts[1]
    assert [found.used > 0 for found in small.list()] == [True, True]
    for found in small.list():
        os.utime(found.path, (time.time() + 3600,) * 2)
    tight = Store(store.path, max_bytes=int(1.5 * size))
    tight.put(artifacts[0].key, artifacts[0])
    assert [found.key for found in tight.list()] == [artifacts[0].key]


def test_a_kernel_larger_than_the_cap_is_said_to_be(store: Store, entry: Path, artifact: Artifact) -> None:
    small = Store(store.path, max_bytes=entry.stat().st_size - 1)
    with pytest.warns(StoreWarning, match=f"more than the store's limit of {small.max_bytes:,}"):
        small.put(artifact.key, artifact)


CALLS = ("open", "mkdir", "listdir", "lstat", "fchmod", "fsync", "replace", "unlink", "utime", "fstat", "close")


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EDQUOT, errno.ENOLCK, errno.EROFS])
@pytest.mark.parametrize("call", [*CALLS, "flock"])
def test_whatever_the_file_system_answers_the_kernel_comes_and_one_word_at_most(
    call: str, number: int, store: Store, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = fcntl if call == "flock" else os
    real = getattr(module, call)
    left = 0

    def failing(*arguments: object, **keywords: object) -> object:
        nonlocal left
        left -= 1
        if left >= 0 or call == "close":  # a descriptor is closed, whatever is said of it
            done = real(*arguments, **keywords)
        if left >= 0:
            return done
        raise OSError(number, os.strerror(number))

    for works in range(5):  # so many such calls before the first that fails
        left = works
        fresh = Store(store.path / str(works), max_bytes=1 << 20)
        with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patched:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of what other tests leave to be collected
            patched.setattr(module, call, failing)
            made = [fresh.get_or_make(artifact.key, lambda: artifact)[0] for _ in range(2)]
            fresh.put_note("declared", artifact.key, b"{}")
        assert made == [artifact, artifact]
        assert len(caught) <= 1, [str(warning.message) for warning in caught]


def test_where_warnings_are_errors_the_kernel_comes_all_the_same(
    tmp_path: Path, artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(tmp_path / "file").get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert "nothing is written to the store" in caplog.text


def test_a_store_that_goes_away_is_made_again(store: Store, entry: Path, artifact: Artifact) -> None:
    shutil.rmtree(store.path)
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert store.get_or_make(artifact.key, fail) == (artifact, True)


HOLD = """
import os, sys
from gemmill.runtime.storage import file_locks
assert file_locks.acquire(sys.argv[1]) is not None
print("held", flush=True)
sys.stdin.read()
"""


def test_a_stuck_lock_delays_and_is_named_but_costs_no_kernel(
    store: Store, artifact: Artifact, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with store.hold_lock(artifact.key):
        pass
    lock = store.path / "locks" / f"{artifact.key[:3]}.lock"
    monkeypatch.setattr(store_module, "_LOCK_SECONDS", 0.2)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with caplog.at_level(logging.WARNING):
            assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
        holder.communicate("")
    assert f"{lock}: another process has held this lock" in caplog.text


def test_a_lock_that_is_let_go_is_free_though_a_forked_process_has_inherited_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    handle = file_locks.acquire(lock)
    assert handle is not None
    assert file_locks.acquire(lock) is None
    with subprocess.Popen(["sleep", "60"], pass_fds=[handle]) as child:
        file_locks.release(handle)
        again = file_locks.acquire(lock)
        child.kill()
    assert again is not None
    file_locks.release(again)


def test_whoever_marks_a_folder_at_the_same_time_finds_it_ours(tmp_path: Path) -> None:
    start = threading.Barrier(8, timeout=10)

    def make(number: int) -> None:
        for i in range(40):
            start.wait()
            with StoreFolder(tmp_path / str(i)).opened("locks"):
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
