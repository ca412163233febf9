"""Builds libgemmill and the programs of its tests, once for a run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cases import shared_folders
from tests.cases.compilers import missing
from tests.runtime.native import cases

from gemmill.runtime.compile.toolchain import Toolchain
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice_table import ChoiceTable
from gemmill.runtime.storage.pack import write_pack

HERE = Path(__file__).parent
_OPTIONS = ("-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0")


def cuda_include() -> Path:
    """The folder of cuda.h, which only the driver of the tests includes."""
    return next(folder for folder in Toolchain.find().include_dirs if (folder / "cuda.h").is_file())


def build(tmp_path_factory: pytest.TempPathFactory, name: str, targets: Sequence[str], *options: str) -> Path:
    """Return the folder of a build of some programs, which all workers of the run share."""
    if lacks := missing():
        pytest.skip(f"libgemmill cannot be built here: missing {lacks}")
    with shared_folders.locked(tmp_path_factory, name) as folder:
        options = (*options, f"-DCUDA_INCLUDE={cuda_include()}")
        for command in (["cmake", *_OPTIONS, *options, str(HERE)], ["make", "-j2", *targets]):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "native", ("driver", "read_pack", "run_cases", "choose_cases"))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "sanitized", ("driver", "fuzz_packs"), "-DSANITIZE=ON")


def packed(tmp_path_factory: pytest.TempPathFactory, names: Sequence[str], choices: object = None) -> Path:
    """A pack of some kernels, with a choice table in the form of JSON."""
    path = tmp_path_factory.mktemp("packs") / "kernels.pack"
    registry = Registry(manifests=())
    table = None if choices is None else ChoiceTable.read("choices", choices, names)
    write_pack(path, [registry.get(name) for name in names], choices=table)
    return path


@pytest.fixture(scope="session")
def small_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with a choice table."""
    names = (cases.PINGPONG, cases.CLUSTER, cases.SPLIT, cases.STREAM)
    return packed(tmp_path_factory, names, cases.CHOICES)


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack without one."""
    return packed(tmp_path_factory, cases.KERNELS)
