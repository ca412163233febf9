"""The doctor names the culprit in broken environments, and builds fail with no less."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.cases.manifests import ONE
from tests.runtime.health.environments import BROKEN, MAJOR, Broken, Environment, _include, _wheel

from gemmill.library.config.model import FAMILIES
from gemmill.library.config.names import parse_name
from gemmill.runtime.health.trial_kernels import KERNELS


def some(*ids: str) -> list[object]:
    """Environments as parameters, all but a few as heavy."""
    marks = {broken.id: [] if broken.id in ids else [pytest.mark.heavy] for broken in BROKEN}
    return [pytest.param(broken, id=broken.id, marks=marks[broken.id]) for broken in BROKEN]


def where_nothing_builds(parameters: list[object]) -> list[object]:
    """Of parameters those of environments in which no kernel can be built."""
    return [parameter for parameter, broken in zip(parameters, BROKEN, strict=True) if not broken.builds]


@pytest.mark.slow
@pytest.mark.parametrize("broken", some("no-pathfinder", "nvrtc-without-an-option", "half-of-cccl"))
def test_the_culprit_is_named(broken: Broken, tmp_path: Path) -> None:
    env = Environment(tmp_path / "env")
    broken.breaks(env)
    code, found = env.doctor()
    wrong = {what: finding for what, finding in found.items() if finding["state"] == "wrong"}
    assert code == 1
    assert broken.culprit in wrong, found
    assert broken.says in wrong[broken.culprit]["advice"]


@pytest.mark.slow
@pytest.mark.parametrize("broken", where_nothing_builds(some("deep-in-cccl")))
def test_a_build_fails_with_no_less(broken: Broken, tmp_path: Path) -> None:
    env = Environment(tmp_path / "env")
    broken.breaks(env)
    (tmp_path / "one.yaml").write_text(ONE)
    done = env.run("build", str(tmp_path / "one.yaml"))
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 3)
    assert broken.says in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(MAJOR != "12", reason="wheels of CUDA 13 share a folder, and those of 12 would lie elsewhere")
def test_wheels_of_another_major_beside_change_nothing(tmp_path: Path) -> None:
    env = Environment(tmp_path / "env")
    for header in ("cuda_runtime_api.h", "cuda_fp16.h", "cccl/cuda/std/__cccl/version.h"):
        folder = env.own("nvidia") / "cu13" / "include" / Path(header).parent
        env.own("nvidia/cu13")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / Path(header).name).write_text("#define CUDART_VERSION 13000\n#define CCCL_VERSION 3000000\n")
    (env.own("nvidia/cu13") / "lib").mkdir()
    (env.own("nvidia/cu13") / "lib" / "libnvrtc.so.13").write_text("no library")
    code = "from gemmill.runtime.compile.toolchain import Toolchain; t = Toolchain.find(); print(*t.versions.values())"
    done = subprocess.run([env.python, "-c", code], capture_output=True, text=True, check=True)
    assert [version.partition(".")[0] for version in done.stdout.split()] == ["12", "4", "2", "12"]


@pytest.mark.slow
def test_one_command_mends_all_that_is_broken(tmp_path: Path) -> None:
    """Each command alone would leave the others to be found by the next run."""
    env = Environment(tmp_path / "env")
    env.remove("cutlass_library")
    env.remove(f"{_wheel('cudart')}/include")
    said = env.run("doctor").stdout
    (command,) = re.findall(r"`(pip install .*)`", said)
    assert said.splitlines()[-1] == f"To install all of this: `{command}`"
    pip, word, *options, one, other = shlex.split(command)
    assert (pip, word, options) == ("pip", "install", ["--force-reinstall", "--no-deps"])
    assert {Requirement(one).name, Requirement(other).name} >= {"nvidia-cutlass"}
    assert "cu13" not in said or MAJOR == "13"


@pytest.mark.slow
def test_pieces_of_the_system_are_called_so(tmp_path: Path) -> None:
    env = Environment(tmp_path / "env")
    (toolkit := tmp_path / "toolkit").mkdir()
    (toolkit / "include").symlink_to((env.site / _include("cudart")).resolve())
    env.remove(f"{_wheel('cudart')}/include")
    env.variables |= dict.fromkeys(("CUDA_HOME", "CUDA_PATH"), str(toolkit))
    _, found = env.doctor()
    assert found["cudart"]["detail"].endswith(", outside of this environment")
    assert not found["nvrtc"]["detail"].endswith(", outside of this environment")


def test_every_family_is_tried() -> None:
    assert [parse_name(name).family for name in KERNELS] == list(dict.fromkeys(FAMILIES.values()))


def test_findings_are_a_table_of_texts(tmp_path: Path) -> None:
    env = Environment(tmp_path / "env")
    env.remove("cutlass_library")
    done = env.run("doctor", "--json")
    rows = json.loads(done.stdout)["items"]
    assert all(row.keys() == {"what", "state", "detail", "advice"} for row in rows)
    assert {row["state"] for row in rows} <= {"ok", "missing", "wrong"}
    assert next(row for row in rows if row["what"] == "kernels")["detail"].endswith("these do not work: cutlass")
