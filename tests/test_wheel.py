"""The wheel and the sdist: what they carry, what their bytes depend on, and that gemmill runs from an index of them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatch_build import NativeLibrary
from hatchling.bridge.app import Application
from packaging.requirements import Requirement
from tests.cases.environments import build

from gemmill.library.version import __version__

ROOT = Path(__file__).parents[1]
LIBRARY = "gemmill/runtime/native/lib/"
"""Where a wheel that was built with a C++ compiler has libgemmill."""
USE = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.18)
project(use LANGUAGES CXX)
find_package(gemmill REQUIRED)
add_executable(use use.cpp)
target_link_libraries(use gemmill::gemmill)
""",
    "use.cpp": """#include <cstdio>

#include "gemmill/gemmill.h"

int main() { std::puts(gemmill_version()); }
""",
}
"""A program that links it."""
SMALL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a simple index (PEP 503) of what was built."""
    folder = tmp_path / "index" / "gemmill"
    folder.mkdir(parents=True)
    links = []
    for file in built.iterdir():
        (folder / file.name).hardlink_to(file)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        links.append(f'<a href="{file.name}#sha256={digest}">{file.name}</a>')
    (folder / "index.html").write_text("<!DOCTYPE html>\n" + "\n".join(links))
    handler = partial(SimpleHTTPRequestHandler, directory=folder.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _tracked(*folders: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\0") if name and not (ROOT / name).is_symlink()]


@pytest.mark.heavy
def test_wheel_and_sdist_carry_what_git_tracks(built: Path) -> None:
    links = [path for path in (ROOT / "src" / "gemmill").iterdir() if path.is_symlink()]
    tracked = {name.removeprefix("src/") for name in _tracked("src/gemmill")}
    tracked |= {f"gemmill/{name}" for name in _tracked(*(path.resolve().name for path in links))}
    tracked = {name for name in tracked if not name.startswith("gemmill/profiler/results/")}
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        carried = {name for name in files.namelist() if ".dist-info/" not in name and not name.startswith(LIBRARY)}
        different = [name for name in carried & tracked if files.read(name) != (ROOT / "src" / name).read_bytes()]
    assert carried == tracked
    assert not different
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() for member in archive), "links would lead out of the sdist"
        names = {member.name.removeprefix(f"gemmill-{__version__}/") for member in archive}
    assert {name for name in names if name.startswith("src/")} == {f"src/{name}" for name in tracked}


def _unpacked(wheel: Path, to: Path) -> Path:
    with zipfile.ZipFile(wheel) as files:
        files.extractall(to)
    return to


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.heavy
def test_programs_link_the_library_of_the_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    if wheel.name.endswith("-none-any.whl"):
        pytest.skip("the wheel is pure: CMake, a C++ compiler or its libraries are missing")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    site = _unpacked(wheel, tmp_path / "site")
    where = "import gemmill; print(gemmill.cmake_dir(), (gemmill.include_dir() / 'gemmill' / 'gemmill.h').is_file())"
    folder, has_header = _run(sys.executable, "-P", "-c", where, PYTHONPATH=str(site)).stdout.split()
    assert has_header == "True"
    for name, text in USE.items():
        (tmp_path / name).write_text(text)
    for command in (("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dgemmill_DIR={folder}"),
                    ("cmake", "--build", tmp_path / "build")):  # fmt: skip
        done = _run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert _run(tmp_path / "build" / "use").stdout.strip() == __version__


@pytest.mark.heavy
def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    done = _run(*command, PATH=str(tmp_path))
    assert "without libgemmill" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"gemmill-{__version__}-py3-none-any.whl"
    site = _unpacked(wheel, tmp_path / "site")
    done = _run(sys.executable, "-P", "-c", "import gemmill; gemmill.cmake_dir()", PYTHONPATH=str(site))
    assert "InstallationError" in done.stderr
    assert "has no compiled libgemmill" in done.stderr


def test_the_wheel_is_pure_on_other_systems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hook = NativeLibrary(str(ROOT), {}, None, None, str(tmp_path), "wheel", Application())  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "platform", "darwin")
    data: dict[str, Any] = {}
    hook.initialize("standard", data)
    hook.finalize("standard", data, "")
    assert not data
    assert "without libgemmill, which is for Linux" in capsys.readouterr().err


@pytest.mark.heavy
def test_bytes_depend_neither_on_time_nor_on_the_rights_of_files(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    pack = ["tar", "-c", "--null", "-T", "-", "--mode=go-rwx", "--mtime=2001-01-01"]
    packed = subprocess.run(pack, cwd=ROOT, input=names, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=copy, input=packed.stdout, check=True)
    again = build(copy, tmp_path / "again")
    for file in built.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.heavy
def test_gemmill_runs_from_an_index(index: str, tmp_path: Path) -> None:
    """In an environment of its own, which takes dependencies from this one; without any other index."""
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--index-url", index, f"gemmill[cu13,torch]=={__version__}")
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (place / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    assert run(python, "-P", "-c", "import gemmill; print(gemmill.__file__)").startswith(str(place))
    command = python.with_name("gemmill")
    shipped = {path.stem for path in (ROOT / "manifests").glob("*.yaml")}
    listed = {line.split()[0] for line in run(command, "list").splitlines() if line}
    assert shipped <= listed
    assert f".entry gemmill_{SMALL}" in run(command, "emit", SMALL, "--ptx")


def _needs(requirements: list[str]) -> dict[str, object]:
    return {each.name.lower(): each.specifier for each in map(Requirement, requirements)}


def test_the_recipe_of_conda_needs_what_the_wheel_needs() -> None:
    recipe = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    run = _needs(recipe["requirements"]["run"])
    assert recipe["context"]["version"] == __version__
    assert str(run.pop("python")) == project["project"]["requires-python"]
    assert run == _needs(project["project"]["dependencies"])
    host = _needs(recipe["requirements"]["host"])
    assert _needs(project["build-system"]["requires"]).items() <= host.items()
    scripts = [f"{name} = {place}" for name, place in project["project"]["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert re.fullmatch(r"\.\./\.\./dist/gemmill-\$\{\{ version \}\}\.tar\.gz", recipe["source"]["path"])
