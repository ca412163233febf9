"""Toolchain: found without a GPU, clashes refused, every missing piece named."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from gemmill.emitters.emit import emit
from gemmill.library.arch import ARCHS
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ToolchainError
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.toolchain import Toolchain, check, faults


def run(code: str, **environ: str) -> str:
    """Output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_versions_are_those_of_the_installed_pieces() -> None:
    toolchain = Toolchain.find()
    wheels = []
    for wheel in ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"):
        try:
            wheels.append(version(wheel))
        except PackageNotFoundError:
            continue
    nvrtc, cutlass = toolchain.pieces["nvrtc"], toolchain.pieces["cutlass"]
    if nvrtc.via == "site-packages":
        assert nvrtc.version in wheels
    if cutlass.via == "cutlass_library":
        assert version("nvidia-cutlass").startswith(cutlass.version)


def test_headers_are_where_it_says() -> None:
    dirs = Toolchain.find().include_dirs
    for header in ("cute/tensor.hpp", "cuda/std/utility", "cuda_fp16.h"):
        assert any((path / header).is_file() for path in dirs), header


@pytest.mark.slow
def test_nvrtc_of_a_wheel_finds_its_builtins_wherever_it_looks(tmp_path: Path) -> None:
    """NVRTC 13.0.88, which PyTorch 2.13 brings, does not look beside itself: here by a copy made so."""
    toolchain = Toolchain.find()
    if toolchain.pieces["nvrtc"].via != "site-packages":
        pytest.skip("NVRTC is of no wheel here")
    library = Path(next(line.split()[-1] for line in run(_MAPS).splitlines() if "libnvrtc.so" in line))
    copies = tmp_path.joinpath(*library.parts[library.parts.index("nvidia") : -1])
    copies.mkdir(parents=True)
    for path in library.parent.glob("libnvrtc*.so.*"):
        copies.joinpath(path.name).write_bytes(path.read_bytes().replace(b"\0$ORIGIN", b"\0/nowher"))
    shown = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_MAPS}")
    assert str(copies / library.name) in shown
    assert "libnvrtc-builtins" in shown


_MAPS = (
    "from gemmill.runtime.compile.toolchain import Toolchain; Toolchain.find()\n"
    "print('\\n'.join(line for line in open('/proc/self/maps') if '.so' in line))"
)
"""Shows the libraries of a process that has found its toolchain."""


def test_neither_gpu_nor_driver_is_touched() -> None:
    maps = run(_MAPS)
    assert "libnvrtc" in maps
    assert "libcuda.so" not in maps


def with_pieces(**changes: dict[str, Any]) -> Toolchain:
    """The toolchain that is here, with pieces of other versions or origins."""
    found = Toolchain.find()
    return replace(found, pieces={name: x._replace(**changes.get(name, {})) for name, x in found.pieces.items()})


@pytest.mark.parametrize(
    ("cutlass", "cccl", "clashes"),
    [("4.2.0", "3.2.0", True), ("4.2.1", "3.10.0", True), ("4.2.0", "3.1.4", False), ("4.3.0", "3.2.0", False)],
)
def test_cutlass_and_cccl_that_clash(cutlass: str, cccl: str, clashes: bool) -> None:
    toolchain = with_pieces(cutlass={"version": cutlass}, cccl={"version": cccl})
    if not clashes:
        check(toolchain)
        return
    with pytest.raises(ToolchainError, match=rf"CUTLASS {cutlass}.*CCCL {cccl}.*pip install 'nvidia-cuda-cccl"):
        check(toolchain)


def test_headers_of_another_cuda_than_nvrtc_are_refused() -> None:
    toolchain = with_pieces(nvrtc={"version": "12.9.86"}, cudart={"version": "13.0", "via": "CUDA_PATH"})
    with pytest.raises(ToolchainError, match=r"NVRTC 12\.9\.86.*CUDA headers 13\.0 \(CUDA_PATH: .*extra 'cu12'"):
        check(toolchain)


def test_targets_that_cuda_has_dropped_are_refused() -> None:
    old, new = (with_pieces(nvrtc={"version": version}) for version in ("12.9.86", "13.0.88"))
    for name, arch in ARCHS.items():
        old.check_target(arch)
        if name != "sm70":
            new.check_target(arch)
    config = parse_name("sm70_f32k16_f32k16_f32_none_f32n16_64x64x16_1x1_simt_s2_m8_k1_linear")
    with pytest.raises(ToolchainError, match=r"NVRTC 13\.0\.88 .*sm_70; CUDA 12 is the last.*extra 'cu12'"):
        Compiler(new).compile(emit(config), config)


def test_directories_given_replace_those_found(tmp_path: Path) -> None:
    found = Toolchain.find()
    code = "from gemmill.runtime.compile.toolchain import Toolchain as T; t = T.find(); print(t.pieces)"
    given = os.pathsep.join(map(str, found.include_dirs))
    assert run(code, GEMMILL_INCLUDE=given).count("GEMMILL_INCLUDE") == 3
    with pytest.raises(AssertionError, match=r"ToolchainError: cutlass/version.h of CUTLASS was not found"):
        run(code, GEMMILL_INCLUDE=str(tmp_path))


@pytest.mark.parametrize("module", ["cuda.bindings", "cuda.pathfinder"])
def test_a_missing_package_is_named_with_the_way_out(module: str) -> None:
    code = f"""
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} or name.startswith({module + "."!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Gone())
from gemmill.library.errors import ToolchainError
from gemmill.runtime.registry import Registry
try:
    Registry(manifests=()).get("sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear")
except ToolchainError as error:
    print(error)
"""
    message = run(code)
    assert module in message
    assert "extra 'cu12'" in message


def test_headers_of_one_version_may_lie_twice_as_wheels_beside_a_toolkit_do(tmp_path: Path) -> None:
    found = Toolchain.find()
    (tmp_path / "again").symlink_to(found.pieces["cudart"].place)
    twice = replace(found, include_dirs=(tmp_path / "again", *found.include_dirs))
    assert not list(faults(twice))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 12010\n")
    other = replace(found, include_dirs=(tmp_path / "other", *found.include_dirs))
    assert [fault.piece for fault in faults(other)] == ["cudart"]
