"""Keys by name: a kernel of a store is found without its text, and never another build's or another kernel's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemmill.runtime.compile.compile_worker import answer
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.kernel_keys import KernelKeys
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store


@pytest.fixture
def store(tmp_path: Path, artifacts: tuple[Artifact, ...]) -> Store:
    """A store of two kernels, whose keys are remembered."""
    store = Store(tmp_path / "store")
    for artifact in artifacts:
        store.put(artifact.key, artifact)
        assert answer(Compiler(store=store), artifact.config, store).endswith(artifact.to_bytes())
    return store


def unable(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing is emitted")


def test_a_registry_finds_what_was_compiled_before_without_emitting(
    store: Store, artifacts: tuple[Artifact, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmill.emitters.emit.emit", unable)
    registry = Registry(manifests=(), store=store)
    assert registry.get(artifacts[0].name) == artifacts[0]
    assert registry.get(artifacts[1].config) == artifacts[1]


def test_what_a_registry_finds_by_its_text_is_found_by_name_from_then_on(
    store: Store, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (store.path / "keys").iterdir()
    file.unlink()
    assert Registry(manifests=(), store=store).get(artifact.name) == artifact
    monkeypatch.setattr("gemmill.emitters.emit.emit", unable)
    assert Registry(manifests=(), store=store).get(artifact.name) == artifact
    assert file.read_text().split() == [artifact.name, artifact.key]


def test_keys_of_another_build_are_not_looked_at(
    store: Store, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (store.path / "keys").iterdir()
    known = KernelKeys(store, Compiler(store=store))
    assert known.find(artifact.name) == artifact
    other = Compiler(store=store)
    object.__setattr__(other, "toolkit_digest", "0" * 64)
    with monkeypatch.context() as context:
        context.setattr(other.toolchain.__class__, "versions", property(lambda self: {"nvrtc": "1.0"}))
        assert KernelKeys(store, Compiler(store=store)).find(artifact.name) is None
    assert KernelKeys(store, other).find(artifact.name) is None
    before = file.read_bytes()
    known.add(other, artifact.name, "0" * 64)  # whose headers are others than those of the keys
    assert file.read_bytes() == before
    assert known.find(artifact.name) == artifact


def test_a_key_of_another_kernel_a_torn_line_and_a_lost_entry_are_misses(
    store: Store, artifacts: tuple[Artifact, ...]
) -> None:
    first, second = artifacts
    (file,) = (store.path / "keys").iterdir()
    file.write_text(f"{first.name} {second.key}\n\n{second.name}\n{second.name} {second.key[:20]}\n\n{'x ' * 9}\n")
    found = KernelKeys(store, Compiler(store=store))
    assert found.find(first.name) is None
    assert found.find(second.name) is None
    registry = Registry(manifests=(), store=store)
    assert registry.get(first.name) == first
    store.drop(second.key)
    assert registry.get(second.name).name == second.name


def test_the_keys_are_cleared_with_the_store(store: Store) -> None:
    assert store.clear() == 2
    assert not [*(store.path / "keys").iterdir()]
