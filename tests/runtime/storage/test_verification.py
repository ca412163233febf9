"""A compiled kernel is verified before it runs: every launch fact that is not its config's, every cubin not its own."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmill.library.errors import CompileError, PackError
from gemmill.library.launch import LaunchSpec
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.cubin import Cubin
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.verification import verify

PREFIX = struct.Struct("<8sQQ32s")


def rewritten(artifact: Artifact, change: Callable[[dict[str, Any]], object]) -> Artifact:
    """An artifact with another header, its checksum made right."""
    data = artifact.to_bytes()
    magic, size, rest, _ = PREFIX.unpack_from(data)
    header = json.loads(data[PREFIX.size : PREFIX.size + size])
    change(header)
    head, body = json.dumps(header).encode(), data[PREFIX.size + size :]
    digest = hashlib.sha256(head + body).digest()
    return Artifact.from_bytes(PREFIX.pack(magic, len(head), rest, digest) + head + body)


def test_what_was_compiled_here_is_what_it_says(artifacts: tuple[Artifact, ...]) -> None:
    for artifact in artifacts:
        verify(artifact)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 4096),
        ("params_bytes", 1 << 30),
        ("shared_bytes", 1 << 30),
        ("cluster", [9, 9]),
        ("tile", [0, 0]),
        ("cluster_k", 2),
        ("boxes", []),
        ("offsets", {}),
    ],
)
def test_a_launch_fact_that_is_not_the_configs_is_named(name: str, value: object, artifact: Artifact) -> None:
    changed = rewritten(artifact, lambda header: header["launch"].update({name: value}))
    with pytest.raises(ValueError, match=f"its LaunchSpec has {name} = "):
        verify(changed)


@pytest.mark.parametrize(("name", "value"), [("threads", -1), ("threads", 384.0), ("shared_bytes", True)])
def test_a_launch_fact_of_another_type_is_refused(name: str, value: object, artifact: Artifact) -> None:
    with pytest.raises(ValueError, match=f"launch.{name} is {value}; it must be a whole number"):
        rewritten(artifact, lambda header: header["launch"].update({name: value}))


@pytest.mark.parametrize("name", ["registers", "static_shared_bytes", "dynamic_shared_bytes", "stack_bytes"])
def test_a_resource_that_is_not_the_cubins_is_named(name: str, artifact: Artifact) -> None:
    changed = rewritten(artifact, lambda header: header["resources"].update({name: 7}))
    with pytest.raises(ValueError, match=f"its list of resources has {name} = 7"):
        verify(changed)


def test_an_entry_that_the_cubin_has_not_is_no_artifact(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="its cubin has no kernel 'no_such_symbol'"):
        rewritten(artifact, lambda header: header["launch"].update(entry="no_such_symbol"))


def test_a_cubin_of_another_config_is_refused(artifacts: tuple[Artifact, ...]) -> None:
    first, second = artifacts
    with pytest.raises(ValueError, match="its cubin has no kernel 'gemmill_"):
        Artifact.from_bytes(replace(first, cubin=second.cubin).to_bytes())
    with pytest.raises(ValueError, match="no symbol"):
        verify(replace(first, cubin=second.cubin))


def test_a_cubin_that_exports_other_facts_is_refused(artifact: Artifact) -> None:
    """The code is that of the config by name, but was made with another tile."""
    facts = Cubin(artifact.cubin).facts(f"{artifact.launch.entry}_spec")
    name, value = next(iter(facts.items()))
    pair = struct.pack("<II", name, value)
    assert artifact.cubin.count(pair) == 1
    changed = artifact.cubin.replace(pair, struct.pack("<II", name, value + 128))
    with pytest.raises(
        ValueError, match=f"the kernel computes threads = {value + 128}, but its LaunchSpec has {value}"
    ):
        verify(replace(artifact, cubin=changed))


def test_an_illegal_config_is_no_kernel(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match=r"\[shared-memory\]|stages"):
        verify(replace(artifact, config=replace(artifact.config, stages=50)))


@pytest.mark.parametrize("size", [0, 10, 63, 64, 1000])
def test_a_truncated_cubin_is_a_fault_and_no_crash(size: int, artifact: Artifact) -> None:
    with pytest.raises(CompileError, match="the cubin is not an ELF file, or is damaged"):
        Cubin(artifact.cubin[:size])


@pytest.mark.parametrize("offset", [1 << 20, 1 << 62, 1 << 63, (1 << 64) - 1])
def test_a_cubin_whose_tables_lie_nowhere_is_a_fault(offset: int, artifact: Artifact) -> None:
    table = struct.pack("<Q", offset)
    with pytest.raises(CompileError, match="the cubin is not an ELF file, or is damaged"):
        Cubin(artifact.cubin[:40] + table + artifact.cubin[48:])


@pytest.fixture
def pack(tmp_path: Path, artifacts: tuple[Artifact, ...]) -> Path:
    """A pack with one kernel that is launched otherwise than its config says, and a sound one."""
    path = tmp_path / "kernels.pack"
    first, second = artifacts
    write_pack(path, [replace(first, launch=replace(first.launch, threads=4096)), second])
    return path


def test_a_pack_runs_no_kernel_that_is_not_what_it_says(
    pack: Path, artifacts: tuple[Artifact, ...], tmp_path: Path
) -> None:
    evil, sound = artifacts
    opened = Pack.open(pack, tmp_path / "store")
    assert opened.get(sound.name) == sound
    for _ in range(2):
        with pytest.raises(PackError, match="does not match its config: its LaunchSpec has threads = 4096"):
            opened.get(evil.name)
        assert [*opened.verify()] == [evil.name]


def test_a_verdict_is_remembered_for_the_content_of_a_pack(
    tmp_path: Path, artifacts: tuple[Artifact, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, store = tmp_path / "kernels.pack", tmp_path / "store"
    write_pack(path, artifacts)
    seen: list[str] = []

    def told(artifact: Artifact) -> None:
        seen.append(artifact.name)
        verify(artifact)

    monkeypatch.setattr("gemmill.runtime.storage.verification.verify", told)
    names = [artifact.name for artifact in artifacts]
    for _ in range(2):
        for name in names:
            Pack.open(path, store).get(name)
    assert seen == names, "once each"
    moved = path.rename(tmp_path / "moved.pack")
    Pack.open(moved, store).get(names[0])
    assert seen == names, "wherever the file is"
    assert Pack.open(moved, store).verify() == {}
    assert seen == [*names, *sorted(names)], "who asks for it gets everything verified"
    status = moved.stat()
    first, second = artifacts
    write_pack(moved, [replace(first, launch=replace(first.launch, threads=4096)), second])
    os.utime(moved, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PackError, match="threads = 4096"):
        Pack.open(moved, store).get(first.name)


def test_verdicts_are_private_and_those_of_others_do_not_count(pack: Path, artifacts: tuple[Artifact, ...]) -> None:
    evil, sound = artifacts
    store = pack.parent / "store"
    Pack.open(pack, store).get(sound.name)
    (file,) = (store / "verified").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_text(f"{evil.name}\n")
    file.chmod(0o666)
    with pytest.raises(PackError, match="threads = 4096"):
        Pack.open(pack, store).get(evil.name)
    assert Store(store).clear() == 0
    assert not [*(store / "verified").iterdir()]


def test_verdicts_that_cannot_be_kept_cost_time_alone(
    pack: Path, artifacts: tuple[Artifact, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert Pack.open(pack, tmp_path / "file").get(artifacts[1].name) == artifacts[1]


def test_the_store_verifies_what_it_holds(store_of: Callable[[Artifact], Store], artifact: Artifact) -> None:
    launch: LaunchSpec = replace(artifact.launch, threads=4096)
    store = store_of(replace(artifact, launch=launch))
    assert [fault for fault in store.verify().values() if "threads = 4096" in fault]


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[[Artifact], Store]:
    """A store with one entry, filed under the key that it says it has."""

    def made(artifact: Artifact) -> Store:
        store = Store(tmp_path / "store")
        store.put(artifact.key, artifact)
        return store

    return made
