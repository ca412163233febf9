"""Packages of AOTInductor without Python: libgemmill_torch, built against this PyTorch, and the example program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

torch = pytest.importorskip("torch")

from tests.cases.compilers import missing  # noqa: E402
from tests.cases.programs import EXAMPLES, Program, run_program  # noqa: E402

ROOT = Path(__file__).parents[2]
PACK = ROOT / "tests" / "data" / "formats" / "written.pack"
needs_compiler = pytest.mark.skipif(bool(missing()), reason=f"libgemmill cannot be built here: missing {missing()}")


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, folder: Path, defined: Mapping[str, object]) -> None:
    options = {"CMAKE_BUILD_TYPE": "None", "CMAKE_CXX_FLAGS": "-O0", "CMAKE_INSTALL_LIBDIR": "lib", **defined}
    run("cmake", "-S", source, "-B", folder, *(f"-D{name}={value}" for name, value in options.items()))
    run("cmake", "--build", folder, "--parallel", "2")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where libgemmill and libgemmill_torch are installed."""
    folder = tmp_path_factory.mktemp("aoti")
    for name in ("", "torch"):
        options = {"CMAKE_INSTALL_PREFIX": folder, "CMAKE_PREFIX_PATH": folder, "TORCH": torch.__path__[0]}
        build(ROOT / "runtime" / "native" / name, folder / "build" / name, options)
        run("cmake", "--install", folder / "build" / name)
    return folder


WITHOUT_GEMMILL = """
import os, sys, torch
torch.ops.load_library(sys.argv[1])
for name in torch._C._dispatch_get_all_op_names():
    if name.startswith("gemmill::"):
        print(getattr(torch.ops.gemmill, name[9:]).default._schema)
a, b = torch.ones(4, 8), torch.ones(8, 16)
def refused(pack, call):
    os.environ["GEMMILL_PACKS"] = pack
    try:
        call()
    except RuntimeError as error:
        print(error)
refused("", lambda: torch.ops.gemmill.mm(a, b, options="tf32=True;bits='k16'"))
refused("", lambda: torch.ops.gemmill.mm(a, b))
refused("/a.pack,/b.pack", lambda: torch.ops.gemmill.mm(a, b))
refused("/absent.pack", lambda: torch.ops.gemmill.bmm(a, b))
refused("", lambda: torch.ops.gemmill.grouped_mm(a, b, a, rows=a))
refused(sys.argv[2], lambda: torch.ops.gemmill.addmm(b, a, b))
refused(sys.argv[2], lambda: torch.ops.gemmill.epilogue("d = acc + x * v[n]", a, b, [a], ["v", "x"], numbers=[2.0]))
"""


@pytest.mark.slow
@needs_compiler
def test_operators_are_those_of_python_and_name_what_they_refuse(prefix: Path) -> None:
    import gemmill.torch  # noqa: F401

    lines = run(sys.executable, "-c", WITHOUT_GEMMILL, prefix / "lib" / "libgemmill_torch.so", PACK).splitlines()
    *schemas, option, unset, several, absent, rows, host, vector = lines
    names = sorted(schema.partition("(")[0].removeprefix("gemmill::") for schema in schemas)
    assert names == ["addmm", "baddbmm", "bmm", "epilogue", "grouped_mm", "mm", "scaled_mm"]
    assert sorted(schemas) == [str(getattr(torch.ops.gemmill, name).default._schema) for name in names]
    assert option.startswith("gemmill::mm: the option bits='k16' needs Python;")
    assert unset.startswith("gemmill::mm: GEMMILL_PACKS is not set: ")
    assert several.startswith("gemmill::mm: GEMMILL_PACKS is /a.pack,/b.pack; ")
    assert absent.startswith("gemmill::bmm: /absent.pack: ")
    assert rows.startswith("gemmill::grouped_mm: rows needs Python")
    assert host == "gemmill::addmm: a is not in GPU memory: move it to the GPU"
    assert vector == "gemmill::epilogue: a is not in GPU memory: move it to the GPU"


def packaged(prefix: Path, folder: Path, arguments: str) -> list[str | Path]:
    """The command that runs a package of the example's decoder."""
    run_program(Program("aoti/export.py", f"{folder} --tiny {arguments}"), folder, OMP_NUM_THREADS="2")
    build(EXAMPLES / "aoti", folder / "build", {"CMAKE_PREFIX_PATH": prefix, "TORCH": torch.__path__[0]})
    files = (folder / name for name in ("model.pt2", "inputs.pt", "outputs.pt"))
    return [folder / "build" / "run_package", *files]


IN_PYTHON = """
import sys, torch, gemmill.torch
folder, device = sys.argv[1:]
if device == "cpu":
    gemmill.torch.run_on_cpu()
inputs, expected, *outputs = (
    torch.load(f"{folder}/{name}.pt", map_location=device, weights_only=False)[0]  # C++ saves its own lists
    for name in ("inputs", "expected", "outputs")[: 2 + (device == "cuda")]
)
found = torch._inductor.aoti_load_package(f"{folder}/model.pt2")(inputs)
assert (found - expected).float().norm() < 0.05 * expected.float().norm()
assert all(torch.equal(found, x) for x in outputs)
"""


def run_in_python(folder: Path, device: str, **environment: str) -> None:
    """Run the decoder's package with the operators of gemmill.torch, and compare what it gives: with PyTorch, and to
    the bit with what the C++ program saved."""
    with ZipFile(folder / "model.pt2") as package:
        (library,) = (package.read(name) for name in package.namelist() if name.endswith(".so"))
    if b"libstdc++.so" not in library:
        pytest.skip("the C++ compiler links libstdc++ statically: Python cannot load packages of this PyTorch")
    run(sys.executable, "-c", IN_PYTHON, folder, device, **environment)


@pytest.mark.heavy
@needs_compiler
def test_a_package_calls_the_operators_from_a_program_without_python(prefix: Path, tmp_path: Path) -> None:
    """On the CPU its first product is refused. In Python, which can compute on the CPU, the package runs."""
    command = packaged(prefix, tmp_path, "--device cpu --tokens 32")
    done = subprocess.run(command, capture_output=True, text=True, env={"GEMMILL_PACKS": str(PACK)})
    assert done.returncode == 1
    assert "gemmill::mm: a is not in GPU memory" in done.stderr
    assert not (tmp_path / "outputs.pt").exists()
    run_in_python(tmp_path, "cpu")


@pytest.mark.gpu
@needs_compiler
def test_a_program_gives_the_bits_of_python(prefix: Path, tmp_path: Path) -> None:
    command = packaged(prefix, tmp_path, "--tokens 64")
    main = (sys.executable, "-c", "from gemmill.cli import main; main()")
    run(*main, "model", tmp_path / "config.json", "--separate", "--pack", pack := tmp_path / "decoder.pack")
    run(*command, GEMMILL_PACKS=str(pack))
    run_in_python(tmp_path, "cuda", GEMMILL_PACKS=str(pack))
