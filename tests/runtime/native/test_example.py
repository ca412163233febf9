"""The example engine builds with the installed CMake package, and launches what its pack chooses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.runtime.native.cases import CLUSTER, PINGPONG
from tests.runtime.native.conftest import cuda_include
from tests.runtime.native.test_launches import ROOT, recorded

pytestmark = pytest.mark.slow


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_engine_runs_with_the_installed_package(programs: Path, small_pack: Path, tmp_path: Path) -> None:
    run("cmake", "--install", programs / "gemmill", "--prefix", tmp_path / "prefix")
    options = {
        "CMAKE_PREFIX_PATH": tmp_path / "prefix",
        "CUDA_INCLUDE": cuda_include(),
        "CUDA_DRIVER": programs / "driver" / "libcuda.so.1",
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    run("cmake", "-S", ROOT / "examples" / "native", "-B", tmp_path / "build", *defined)
    run("cmake", "--build", tmp_path / "build")
    records = recorded(programs, tmp_path, tmp_path / "build" / "engine", small_pack, "64", "512", "4096")
    launched = [x["launch"] for x in records[""] if "launch" in x]
    assert launched == [f"gemmill_{name}" for name in (CLUSTER, PINGPONG)] * 3
