"""Kernels of a lock come from packs, the store or the compiler, and are those that it names, or none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cases.remotes import Honest, Server
from tests.runtime.storage.test_lockfile import lock_of

from gemmill.library.errors import LockError
from gemmill.library.problem import GemmProblem
from gemmill.runtime import kernel_lock
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.lockfile import Lock
from gemmill.runtime.storage.pack import write_pack
from gemmill.runtime.storage.remote.client import Remote
from gemmill.runtime.storage.store import Store

PROBLEMS = [GemmProblem.from_text(text) for text in ("4096x4096x4096 bf16 tn", "64x4096x4096 bf16 tn")]


@pytest.fixture
def lock(artifacts: tuple[Artifact, ...]) -> Lock:
    return lock_of(PROBLEMS, artifacts)


def other_build(artifact: Artifact) -> Artifact:
    """The same kernel as another toolchain would have made it."""
    return replace(artifact, provenance=replace(artifact.provenance, nvrtc_version="12.8.93"))


def test_what_is_selected_is_locked(tmp_path: Path, artifacts: tuple[Artifact, ...]) -> None:
    write_pack(tmp_path / "kernels.pack", artifacts)
    registry = Registry(packs=[tmp_path / "kernels.pack"], gpu="H200")
    made = kernel_lock.lock(registry, PROBLEMS)
    assert made.gpu == "NVIDIA H200"
    assert made.problems == {str(problem): registry.select(problem).kernel for problem in PROBLEMS}
    assert kernel_lock.lock(registry, PROBLEMS[::-1]).to_bytes() == made.to_bytes()


def test_kernels_come_from_packs_and_the_store(lock: Lock, tmp_path: Path, artifacts: tuple[Artifact, ...]) -> None:
    first, last = artifacts
    store = Store(tmp_path / "store")
    store.put(last.key, last)
    write_pack(tmp_path / "other.pack", [other_build(first)])  # the first that has the kernel, but with other bits
    write_pack(tmp_path / "first.pack", [first])
    registry = Registry(packs=[tmp_path / "other.pack", tmp_path / "first.pack"], store=store)
    assert {each.artifact.name: each.source for each in kernel_lock.fetch(registry, lock)} == {
        first.name: "pack",
        last.name: "store",
    }
    assert registry.get(first.name) == first, "not what the first pack has"
    assert store.get(first.key) == first, "for the next process"


def test_kernels_come_from_a_remote_by_the_key_that_is_locked(
    lock: Lock, tmp_path: Path, artifacts: tuple[Artifact, ...]
) -> None:
    first, last = artifacts
    Store(tmp_path).put(last.key, last)
    with Server(Honest([first], [])) as server:
        registry = Registry(manifests=(), store=tmp_path, remote=Remote(server.url, trusted=None, mode="only"))
        assert [each.source for each in kernel_lock.fetch(registry, lock)] == ["remote", "store"]
        assert server.asked() == ["GET /v1/kernels", "GET /v1/blobs"]
        assert Store(tmp_path).get(first.key) == first


WITHOUT_TOOLKIT = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("cuda.bindings.nvrtc", "cuda.pathfinder", "cutlass_library")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
from pathlib import Path
from tests.runtime.storage.test_lockfile import lock_of

from gemmill.library.errors import ToolchainError
from gemmill.runtime import kernel_lock
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.lockfile import Lock
lock = Lock.read(Path(sys.argv[1]))
for store in sys.argv[2:]:
    try:
        print(*(each.source for each in kernel_lock.fetch(Registry(manifests=(), store=store), lock)))
    except ToolchainError as error:
        print(error)
"""


def test_a_machine_without_a_toolkit_takes_what_its_store_has(
    lock: Lock, tmp_path: Path, artifacts: tuple[Artifact, ...]
) -> None:
    lock.write(tmp_path / "kernels.lock")
    for artifact in artifacts:
        Store(tmp_path / "full").put(artifact.key, artifact)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TOOLKIT, *(tmp_path / name for name in ("kernels.lock", "full", "empty"))],
        capture_output=True,
        text=True,
        check=True,
    )
    full, empty = done.stdout.splitlines()
    assert full == "store store"
    assert re.match(
        r"2 of 2 locked kernels, such as sm90a_\w+, are in no pack and no store, and cannot be compiled here: ", empty
    )


@pytest.mark.slow
def test_what_is_nowhere_is_compiled_to_the_same_bits(lock: Lock, tmp_path: Path) -> None:
    registry = Registry(manifests=(), store=tmp_path / "store")
    assert [each.source for each in kernel_lock.fetch(registry, lock)] == ["compiled", "compiled"]
    assert [each.source for each in kernel_lock.fetch(registry, lock)] == ["store", "store"]


def test_other_bits_are_refused_and_named(tmp_path: Path, artifacts: tuple[Artifact, ...]) -> None:
    first, last = artifacts
    other = lock_of(PROBLEMS, (other_build(first), last))
    registry = Registry(manifests=())
    with pytest.raises(LockError, match="1 of 2 kernels differ from the lock") as refused:
        kernel_lock.fetch(registry, other)
    assert f"{first.name}: nvrtc_version is 12.9.86, locked 12.8.93" in str(refused.value)
    assert not registry._loaded, "not even what is as locked"


def test_a_name_that_was_exchanged_in_the_lock_is_refused(
    lock: Lock, tmp_path: Path, artifacts: tuple[Artifact, ...]
) -> None:
    store = Store(tmp_path)
    for artifact in artifacts:
        store.put(artifact.key, artifact)
    first, last = artifacts
    text = lock.to_bytes().decode().replace(first.name, "?").replace(last.name, first.name).replace("?", last.name)
    with pytest.raises(LockError, match="2 of 2 kernels differ from the lock"):
        kernel_lock.fetch(Registry(manifests=(), store=store), Lock.from_bytes(text.encode()))


def test_machine_code_that_was_exchanged_in_the_lock_is_refused(lock: Lock, artifacts: tuple[Artifact, ...]) -> None:
    content = json.loads(lock.to_bytes())
    content["kernels"][artifacts[0].name]["cubin"] = "0" * 64
    with pytest.raises(
        LockError, match=r"made from the same inputs, but the digest of its machine code is \w{12}, locked 0{12}"
    ):
        kernel_lock.fetch(Registry(manifests=()), Lock.from_bytes(json.dumps(content).encode()))
