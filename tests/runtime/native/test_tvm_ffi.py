"""Callers with TVM-FFI's ABI launch what a pack chooses, and get the library's sentences as errors."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.native.cases import PINGPONG
from tests.runtime.native.test_example import run
from tests.runtime.native.test_launches import ROOT

pytestmark = pytest.mark.slow


def test_a_module_of_tvm_ffi_launches_and_refuses(programs: Path, small_pack: Path, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        pytest.skip("apache-tvm-ffi is not installed")
    run("cmake", "--install", programs / "gemmill", "--prefix", tmp_path / "prefix")
    options = {"CMAKE_PREFIX_PATH": tmp_path / "prefix", "TVM_FFI": Path(spec.origin).parent}
    defined = [f"-D{name}={value}" for name, value in options.items()]
    run("cmake", "-S", ROOT / "runtime" / "native" / "tvm_ffi", "-B", tmp_path / "build", *defined)
    run("cmake", "--build", tmp_path / "build")
    module = "tests.runtime.native.tvm_ffi_calls"
    environment = {"LD_LIBRARY_PATH": str(programs / "driver"), "RECORDING": str(tmp_path / "records")}
    command = (sys.executable, "-m", module, tmp_path / "build" / "libgemmill_tvm_ffi.so", small_pack)
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    of_host, of_missing = done.stdout.splitlines()
    assert of_host == "a is in host memory; it must be in GPU memory"
    assert of_missing.startswith(f"{small_pack}.missing: ")
    (launch,) = (tmp_path / "records").read_text().splitlines()
    assert launch.startswith(f'{{"launch":"gemmill_{PINGPONG}"')
