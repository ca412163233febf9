"""Names of the kernels that ship, kept in the store: what they stand for never differs from what manifests declare."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gemmill
from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.declared_kernels import origin

PROBLEM = GemmProblem(512, 256, 128, 1, "f64", "k", "f64", "k", "f64", "f64", "n")


CODE = f"""
import sys, gemmill
from gemmill.library.arch import DEFAULT_GPU
registry = gemmill.Registry(store=sys.argv[1], gpu=DEFAULT_GPU)
print(*(candidate.name for candidate in registry.candidates(gemmill.{PROBLEM!r}, 1000)))
print(*(name for name in ("yaml", "pydantic", "gemmill.library.manifest.load") if name in sys.modules))
"""


def process(store: Path, **environ: str) -> tuple[list[str], list[str]]:
    """The kernels that a problem can go to in a new process, the best first; what that process imported to read
    manifests."""
    command = [sys.executable, "-c", CODE, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environ)
    chosen, imported = done.stdout.splitlines()
    return chosen.split(), imported.split()


def kept(store: Path) -> Path:
    """The only file of names in a store."""
    (path,) = store.glob("declared/*.json")
    return path


def kernels(store: Path) -> tuple[str, ...]:
    """The kernels of a new registry of this process, the best first."""
    registry = Registry(store=store, gpu=DEFAULT_GPU)
    return tuple(candidate.name for candidate in registry.candidates(PROBLEM, 1000))


def test_a_second_process_chooses_alike_and_reads_no_manifest(tmp_path: Path) -> None:
    chosen, imported = process(tmp_path)
    assert any(name.startswith("sm90_f64k16") for name in chosen)
    assert imported == ["yaml", "pydantic", "gemmill.library.manifest.load"]
    assert process(tmp_path) == (chosen, [])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A store with the names, and the kernels in their order."""
    store = tmp_path_factory.mktemp("filled")
    return store, kernels(store)


DAMAGED: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "another tile": lambda text: text.replace("128x128x8", "128x64x8", 1),
    "a list": lambda text: json.dumps(json.loads(text)["kernels"]),
    "no text": lambda text: "\udcff",
    "one less": lambda text: json.dumps(json.loads(text) | {"kernels": json.loads(text)["kernels"][1:]}),
    "a number": lambda text: json.dumps(json.loads(text) | {"kernels": 1}),
    "nothing": lambda text: "{}",
}
HEAVY = ("one less", "a number", "nothing")


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.heavy] * (how in HEAVY)) for how in DAMAGED])
def test_what_is_damaged_is_replaced(how: str, filled: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    store, expected = filled
    shutil.copytree(store, tmp_path, dirs_exist_ok=True)
    text = kept(tmp_path).read_text()
    wrong = DAMAGED[how](text)
    assert wrong != text
    kept(tmp_path).write_text(wrong, errors="surrogateescape")
    assert kernels(tmp_path) == expected
    assert kept(tmp_path).read_text() == text


@pytest.mark.slow
def test_names_hold_for_the_manifests_and_the_rules_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, store = tmp_path / "gemmill", tmp_path / "store"
    for folder in ("library", "manifests", "emitters", "runtime"):
        shutil.copytree(Path(gemmill.__path__[0]) / folder, package / folder)
    shutil.copy(Path(gemmill.__path__[0]) / "__init__.py", package)
    shipped, _ = process(store, PYTHONPATH=str(tmp_path))
    of_manifests = json.loads(kept(store).read_text())["digest"]
    manifest = package / "manifests" / "mma.yaml"
    manifest.write_text(manifest.read_text().replace('tile: ["128x128x8", "64x64x16"]', 'tile: "64x64x16"'))
    fewer, _ = process(store, PYTHONPATH=str(tmp_path))
    assert len(fewer) < len(shipped)
    assert json.loads(kept(store).read_text())["digest"] != of_manifests
    monkeypatch.setattr(gemmill.library, "__path__", [str(package / "library")])
    before = origin.__wrapped__()
    with (package / "library" / "families" / "mma.py").open("a") as rules:
        rules.write("\n# another\n")
    assert origin.__wrapped__() != before
