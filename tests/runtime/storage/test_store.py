"""The store on real files: nothing that happens to the directory costs a kernel or serves a wrong one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from hashlib import sha256
from pathlib import Path

import pytest

from gemmill.library.errors import StoreWarning
from gemmill.runtime.registry import Registry
from gemmill.runtime.settings import default_store
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import write_pack
from gemmill.runtime.storage.store import Store

ROOT = os.getuid() == 0


def python(code: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output


def fail() -> Artifact:
    raise AssertionError("the store had it")


def test_what_is_put_is_got(store: Store, artifact: Artifact) -> None:
    assert store.get(artifact.key) is None
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert store.get_or_make(artifact.key, fail) == (artifact, True)
    assert Store(store.path).get(artifact.key) == artifact


def test_entries_are_a_sixth_of_their_cubins_or_so(entry: Path, artifact: Artifact) -> None:
    assert entry.stat().st_size < len(artifact.cubin) / 4


def test_a_kernel_that_does_not_compile_is_not_remembered(store: Store, artifact: Artifact) -> None:
    def refuse() -> Artifact:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.get_or_make(artifact.key, refuse)
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 40, 56, 57, 500, -100, -1])
def test_a_truncated_entry_is_a_miss_and_is_replaced(keep: int, entry: Path, store: Store, artifact: Artifact) -> None:
    entry.write_bytes(entry.read_bytes()[:keep])
    assert store.get(artifact.key) is None
    assert list(store.verify()) == [entry]
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert store.verify() == {}


def test_a_flipped_bit_anywhere_is_a_miss(entry: Path, store: Store, artifact: Artifact) -> None:
    sound = entry.read_bytes()
    places = [*range(64), *range(64, len(sound), 211), len(sound) - 1]
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        entry.write_bytes(damaged)
        assert store.get(artifact.key) is None, place
    entry.write_bytes(sound)
    assert store.get(artifact.key) == artifact


def test_foreign_files_are_no_entries(entry: Path, store: Store, artifact: Artifact) -> None:
    for content in (b"", b"\x80\x04K\x01.", b"\x7fELF" + b"\0" * 100, artifact.cubin):
        entry.write_bytes(content)
        assert store.get(artifact.key) is None
    (entry.parent / "notes.txt").write_text("mine")
    (store.path / "README").write_text("mine")
    assert [found.path for found in store.list()] == [entry]
    assert store.clear() == 1
    assert (store.path / "README").exists()


def test_an_entry_under_anothers_key_is_a_miss(
    entry: Path, store: Store, artifact: Artifact, artifacts: tuple[Artifact, ...]
) -> None:
    other = artifacts[1]
    store.put(other.key, other)
    shutil.copyfile(entry, store.path / other.key[:2] / f"{other.key}.gemmill")
    assert store.get(other.key) is None
    (fault,) = store.verify().values()
    assert artifact.name in fault


def test_an_entry_that_is_a_directory_is_a_miss(entry: Path, store: Store, artifact: Artifact) -> None:
    entry.unlink()
    entry.mkdir()
    (entry / "thesis.txt").write_text("mine")
    with pytest.warns(StoreWarning, match=f"{entry}: Directory not empty"):
        assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    (entry / "thesis.txt").unlink()
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False), "an empty one is replaced"
    assert store.get_or_make(artifact.key, fail) == (artifact, True)


def test_a_store_that_cannot_be_written_warns_once_and_is_skipped(
    tmp_path: Path, artifact: Artifact, artifacts: tuple[Artifact, ...]
) -> None:
    path = tmp_path / "file"
    path.write_text("a file where the store should be")
    store = Store(path)
    with pytest.warns(StoreWarning, match=f"nothing is written to the store: {path}") as caught:
        assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get_or_make(artifacts[1].key, lambda: artifacts[1]) == (artifacts[1], False)
    assert store.list() == []
    assert store.clear() == 0


@pytest.mark.skipif(ROOT, reason="root writes everywhere")
def test_a_read_only_store_is_read_and_not_written(
    store: Store, entry: Path, artifact: Artifact, artifacts: tuple[Artifact, ...]
) -> None:
    folders = [store.path, *(path for path in store.path.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert store.get_or_make(artifact.key, fail) == (artifact, True)
        with pytest.warns(StoreWarning, match="Permission denied"):
            assert store.get_or_make(artifacts[1].key, lambda: artifacts[1]) == (artifacts[1], False)
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert [found.path for found in store.list()] == [entry]


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_store_that_is_mounted_read_only_serves(
    store: Store, entry: Path, artifact: Artifact, artifacts: tuple[Artifact, ...], tmp_path: Path
) -> None:
    write_pack(pack := tmp_path / "kernels.pack", artifacts)
    (mount := tmp_path / "mounted").mkdir()
    if subprocess.run(["mount", "--bind", store.path, mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", mount], check=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Store(mount).get_or_make(artifact.key, fail) == (artifact, True)
            assert Registry(manifests=(), store=mount).get(artifact.name) == artifact
            assert Registry(packs=[pack], store=mount).get(artifact.name) == artifact
            Store(mount).put_note("tables", "0" * 64, b"{}")
        assert [found.key for found in Store(mount).list()] == [artifact.key]
        with pytest.warns(StoreWarning, match="Read-only file system"):
            assert Store(mount).get_or_make(artifacts[1].key, lambda: artifacts[1]) == (artifacts[1], False)
    finally:
        subprocess.run(["umount", mount], check=True)
    assert [found.path for found in store.list()] == [entry]


AS_NOBODY = """
import os, sys, warnings
from pathlib import Path
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
artifact, other = (Artifact.from_bytes(Path(path).read_bytes()) for path in sys.argv[2:4])
os.setgroups([]); os.setgid(4242); os.setuid(4242)
store = Store(sys.argv[1] or None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(store.get_or_make(artifact.key, lambda: artifact)[1], store.get_or_make(other.key, lambda: other)[1])
    print(store.get_or_make(other.key, lambda: other)[1])
print(len(caught), store.path)
"""


@pytest.fixture
def loose(tmp_path: Path, artifacts: tuple[Artifact, ...]) -> list[str]:
    """Two artifacts in files that anybody may read."""
    paths = [tmp_path / f"{index}.bin" for index in range(2)]
    for path, artifact in zip(paths, artifacts, strict=True):
        path.write_bytes(artifact.to_bytes())
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    return [str(path) for path in paths]


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_somebody_elses_store_is_read_and_not_written(store: Store, entry: Path, loose: list[str]) -> None:
    for path in (store.path, *store.path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    output = finished(python(AS_NOBODY, str(store.path), *loose)).split()
    assert output[:4] == ["True", "False", "False", "1"]
    assert [found.path for found in store.list()] == [entry]


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
@pytest.mark.parametrize("taken", [False, True])
def test_a_user_without_a_passwd_entry_gets_a_private_store(taken: bool, tmp_path: Path, loose: list[str]) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    if taken:  # by somebody else, who would like to choose the kernels that we run
        (temporary / "gemmill-4242").mkdir(mode=0o777)
    # tempfile: nobody may not read it any more where the interpreter is root's.
    unset = "for name in ('HOME', 'GEMMILL_STORE', 'XDG_CACHE_HOME'): os.environ.pop(name, None)"
    code = f"import os, tempfile\n{unset}\n{AS_NOBODY}"
    hits, again, (count, place) = (
        line.split() for line in finished(python(code, "", *loose, TMPDIR=str(temporary))).splitlines()
    )
    assert (hits, again, count) == (["False", "False"], ["True"], "0")
    path = Path(place)
    assert path.parent == temporary
    assert (path.name == "gemmill-4242") is not taken
    assert path.stat().st_uid == 4242
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_full_disk_is_a_warning_and_leaves_no_half_entry(tmp_path: Path, artifact: Artifact) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", mount], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        store = Store(mount)
        with pytest.warns(StoreWarning, match="No space left"):
            assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)
        assert [path.name for path in mount.rglob("*") if path.is_file() and path.stat().st_size] == ["CACHEDIR.TAG"]
    finally:
        subprocess.run(["umount", mount], check=True)


def test_default_path_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_store() == tmp_path / "gemmill"


RACE = """
import sys, time
from pathlib import Path
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
artifact = Artifact.from_bytes(Path(sys.argv[2]).read_bytes())
def make():
    print("made", flush=True)
    time.sleep(0.5)
    return artifact
print("ready", flush=True)
sys.stdin.readline()
assert Store(sys.argv[1]).get_or_make(artifact.key, make)[0] == artifact
"""


def test_racing_processes_make_a_kernel_once(store: Store, loose: list[str]) -> None:
    racers = [python(RACE, str(store.path), loose[0]) for _ in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    assert "".join(finished(racer) for racer in racers) == "made\n"
    assert store.verify() == {}


WRITE = """
import sys
from pathlib import Path
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
artifact = Artifact.from_bytes(Path(sys.argv[2]).read_bytes())
store = Store(sys.argv[1])
print("ready", flush=True)
while True:
    store.put(artifact.key, artifact)
"""


def test_a_killed_writer_leaves_no_half_entry(store: Store, artifact: Artifact, loose: list[str]) -> None:
    for pause in (0.0, 0.01, 0.03, 0.1):
        writer = python(WRITE, str(store.path), loose[0])
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert store.verify() == {}
    assert store.get(artifact.key) == artifact


def test_a_killed_makers_lock_is_free(store: Store, artifact: Artifact, loose: list[str]) -> None:
    maker = python(RACE.replace("time.sleep(0.5)", "time.sleep(600)"), str(store.path), loose[0])
    assert maker.stdin is not None
    assert maker.stdout is not None
    maker.stdin.write("\n")
    maker.stdin.flush()
    while maker.stdout.readline() != "made\n":
        pass
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    assert store.get_or_make(artifact.key, lambda: artifact) == (artifact, False)


def test_readers_never_see_a_half_entry(store: Store, artifact: Artifact, loose: list[str]) -> None:
    store.put(artifact.key, artifact)
    writer = python(WRITE, str(store.path), loose[0])
    assert writer.stdout is not None
    writer.stdout.readline()
    assert all(store.get(artifact.key) == artifact for _ in range(300))
    writer.kill()
    writer.communicate()


def test_the_least_recently_used_are_evicted(store: Store, entry: Path, artifacts: tuple[Artifact, ...]) -> None:
    """Entries whose content does not matter here stand for kernels."""
    size = entry.stat().st_size
    for age, key in enumerate(("aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32)):
        path = store.path / key[:2] / f"{key}.gemmill"
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(entry, path)
        os.utime(path, (1000 - age, 1000 - age))
    assert store.get(artifacts[0].key) is not None
    small = Store(store.path, max_bytes=4 * size)
    assert [found.key[:2] for found in small.list()][:4] == ["dd", "cc", "bb", "aa"]
    assert small.prune() == 1
    assert [found.key[:2] for found in small.list()] == ["cc", "bb", "aa", artifacts[0].key[:2]]
    small.put(artifacts[1].key, artifacts[1])
    assert small.stats().bytes <= small.max_bytes
    assert small.get(artifacts[1].key) == artifacts[1], "what was just written stays"


def test_packs_are_evicted_as_kernels_are(store: Store, entry: Path, artifact: Artifact) -> None:
    """A pack of a registry counts in every folder of kernels, so that the store as a whole keeps its limit."""
    size = entry.stat().st_size
    (packs := store.path / "packs").mkdir()
    for name, used in (("aa", 1000), ("bb", 1001), ("cc", int(time.time()))):
        (path := packs / f"{name * 32}.pack").write_bytes(bytes(2 * size))
        path.with_name(f"{path.name}.sig").write_bytes(b"{}")
        os.utime(path, (used, used))
    (packs / f"{'dd' * 32}.json").write_bytes(bytes(9 * size))
    found = store.stats()
    assert (found.entries, found.packs, found.bytes) == (1, 3, 7 * size)

    def left() -> set[str]:
        return {path.name[:2] + path.suffix for path in packs.iterdir() if path.suffix != ".json"}

    os.utime(entry, (1500, 1500))
    assert Store(store.path, max_bytes=5 * size).prune() == 1
    assert left() == {"bb.pack", "bb.sig", "cc.pack", "cc.sig"}
    Store(store.path, max_bytes=4 * size).put("ee" * 32, artifact)
    assert left() == {"cc.pack", "cc.sig"}
    assert entry.exists(), "used after the pack"
    Store(store.path, max_bytes=2 * size).make_room_for("cc" * 32)
    assert (store.stats().entries, left()) == (0, {"cc.pack", "cc.sig"})


LISTS = """
import sys
from gemmill.runtime.storage.store import Store
listed = []
sys.addaudithook(lambda event, _: listed.append(event) if event in ("os.listdir", "os.scandir") else None)
Store(sys.argv[1]).write("ab" * 32, b"x", "")
print(len(listed))
"""


def test_adding_an_entry_lists_only_its_folder(store: Store, entry: Path) -> None:
    """So that it takes as long in a store of many entries as in a small one."""
    for number in range(64):
        (store.path / f"{number:02x}").mkdir(exist_ok=True)
    listings = finished(python(LISTS, str(store.path), GEMMILL_STORE_BYTES="4G"))
    assert int(listings) <= 2, "for entries, and for files of killed writers"
    assert store.stats().entries == 2


@pytest.mark.parametrize("most", [1 << 16, 1 << 20])
def test_a_store_keeps_its_limit_however_many_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Each writer measures all folders, or 16 of them; and the store was over its limit before."""
    monkeypatch.setattr("gemmill.runtime.storage.store._MEASURED_BYTES", 1 << 16)
    keys = [sha256(bytes([number % 256, number // 256])).hexdigest() for number in range(3 * most >> 12)]
    for key in keys[: len(keys) // 2]:
        Store(tmp_path, max_bytes=2 * most).write(key, bytes(1 << 12), "")
    for key in keys[len(keys) // 2 :]:
        (writer := Store(tmp_path, max_bytes=most)).write(key, bytes(1 << 12), "")
        assert writer.holds(key)
    assert 0.8 * most < Store(tmp_path).stats().bytes <= most


def test_processes_that_evict_at_once_leave_what_one_would(store: Store, entry: Path) -> None:
    size = entry.stat().st_size
    for i in range(199):
        path = store.path / f"{i:02x}" / f"{i:02x}{i:062x}.gemmill"
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(entry, path)
    code = (
        "import sys; from gemmill.runtime.storage.store import Store; sys.stdin.readline();"
        "Store(sys.argv[1], max_bytes=int(sys.argv[2])).prune()"
    )
    processes = [python(code, str(store.path), str(100 * size)) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        finished(process)
    assert store.stats().entries == 100


def test_a_cap_of_nothing_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, artifact: Artifact) -> None:
    monkeypatch.setenv("GEMMILL_STORE_BYTES", "0")
    store = Store(tmp_path)
    store.put(artifact.key, artifact)
    assert store.stats().max_bytes == 0
    assert not store.list()


def test_reading_counts_as_use(store: Store, entry: Path, artifact: Artifact) -> None:
    os.utime(entry, (1000, 1000))
    store.get(artifact.key)
    assert store.list()[0].used > 1000


def test_what_killed_writers_left_is_removed_in_time(store: Store, entry: Path) -> None:
    old, ahead, new, other = (
        entry.parent / f".tmp-{name}" for name in ("0" * 16, "1" * 16, "2" * 16, "from-another-program")
    )
    for path in (old, ahead, new, other):
        path.write_bytes(b"half")
    for path, days in ((old, -400), (ahead, 400), (other, -400)):
        os.utime(path, (time.time() + days * 86400,) * 2)
    assert store.prune() == 0
    assert [path.exists() for path in (old, ahead, new, other)] == [False, False, True, True]
    assert store.stats().entries == 1


def test_clearing_empties(store: Store, entry: Path, artifact: Artifact) -> None:
    assert (store.stats().entries, store.stats().bytes) == (1, entry.stat().st_size)
    assert store.clear() == 1
    assert store.get(artifact.key) is None
