"""Builds libgemmill and the programs of its tests, once for a run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gemmill.library.config.model import GemmConfig
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage import file_locks
from gemmill.runtime.storage.pack import write_pack

HERE = Path(__file__).parent
_MINUTES = 15


def _missing() -> str:
    """What the build lacks here."""
    if tools := [tool for tool in ("cmake", "c++", "make") if shutil.which(tool) is None]:
        return ", ".join(tools)
    headers = "#include <nlohmann/json_fwd.hpp>\n#include <sodium.h>\n#include <zstd.h>\n"
    found = subprocess.run(["c++", "-xc++", "-fsyntax-only", "-"], input=headers, text=True, capture_output=True)
    return "headers of nlohmann-json, libsodium or libzstd" if found.returncode else ""


def build(tmp_path_factory: pytest.TempPathFactory, name: str, *options: str) -> Path:
    """Return the folder of a build, which all workers of the run share."""
    if missing := _missing():
        pytest.skip(f"libgemmill cannot be built here: missing {missing}")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    lock = file_locks.acquire(folder / "lock", seconds=60 * _MINUTES)
    assert lock is not None
    try:
        for command in (["cmake", "-DCMAKE_CXX_FLAGS=-O1", *options, str(HERE)], ["make", "-j2"]):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        file_locks.release(lock)
    return folder


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "native", "-DCMAKE_BUILD_TYPE=None")


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "sanitized", "-DCMAKE_BUILD_TYPE=None", "-DSANITIZE=ON")


@pytest.fixture(scope="session")
def small_pack(tmp_path_factory: pytest.TempPathFactory, configs: tuple[GemmConfig, ...]) -> Path:
    path = tmp_path_factory.mktemp("packs") / "small.pack"
    registry = Registry(manifests=())
    write_pack(path, [registry.get(config) for config in configs])
    return path
