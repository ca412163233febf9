"""Shell completion, asked as shells ask: by a process with their variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.test_cli import SMALL

from gemmill.cli.completion import gpus, next_parts
from gemmill.library.arch import GPUS, gpu_named

pytestmark = pytest.mark.slow


def answer(folder: Path, **variables: str) -> str:
    """What `gemmill` prints in a folder for a shell that sets these variables; it prints no complaint."""
    command = [sys.executable, "-c", "from gemmill.cli import main; main()"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables}, cwd=folder, check=False
    )
    assert done.stderr == ""
    return done.stdout


def bash(folder: Path, line: str) -> list[str]:
    words = line.split(" ")
    variables = {"_GEMMILL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return answer(folder, **variables).split()


def zsh(folder: Path, line: str) -> list[str]:
    said = answer(folder, _GEMMILL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    return said.removeprefix("_arguments '*: :((").removesuffix("))'\n").replace('"', "").split("\n")


def fish(folder: Path, line: str) -> list[str]:
    variables = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return answer(folder, _GEMMILL_COMPLETE="complete_fish", **variables).split()


LINES = {
    "gemmill select --a-dtype e": ["e4m3", "e5m2"],
    "gemmill select --gpu H1": ["H100-80GB-HBM3", "H100-PCIe"],
    "gemmill profile bf16 --shapes l": ["large", "llm"],
    "gemmill list f": ["f16", "fp8", "facts.yaml"],
    "gemmill build k": ["k.cu"],
}


OTHERS = "gemmill select --gpu H1"
"""The line that the other shells complete as well: what is found is the same, what they print is theirs."""


@pytest.mark.parametrize(("shell", "line"), [*((bash, line) for line in LINES), (zsh, OTHERS), (fish, OTHERS)])
def test_every_shell_completes(shell: Callable[[Path, str], list[str]], line: str, tmp_path: Path) -> None:
    for name in ("facts.yaml", "facts.txt", "k.cu"):
        (tmp_path / name).touch()
    assert shell(tmp_path, line) == LINES[line]


def test_kernels_are_completed_a_part_at_a_time_until_few_are_left(tmp_path: Path) -> None:
    arches = bash(tmp_path, "gemmill emit ")
    assert "sm90a_" in arches
    assert all(arch.count("_") == 1 for arch in arches)
    operands = bash(tmp_path, "gemmill run --kernel sm90a_e4m3k16s")
    assert len(operands) > 1
    assert all(name.startswith("sm90a_e4m3k16s1x128_") for name in operands)
    tile = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_"
    assert f"{tile}cooperative_s4_m8_k1_linear" in bash(tmp_path, f"gemmill diff {SMALL} {tile}")
    assert bash(tmp_path, "gemmill explain nothing_is_called_so") == []


EMIT = {"_GEMMILL_COMPLETE": "complete_bash", "COMP_WORDS": "gemmill emit sm90a_", "COMP_CWORD": "2"}


@pytest.mark.heavy
def test_a_store_that_keeps_nothing_costs_time_and_no_completion(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "sm90a_bf16k16_" in answer(tmp_path, **EMIT, GEMMILL_STORE=str(tmp_path / "file"))


def test_what_goes_wrong_completes_nothing_and_says_nothing(tmp_path: Path) -> None:
    assert answer(tmp_path, **EMIT, GEMMILL_STORE="relative").strip() == ""
    assert bash(tmp_path, "gemmill build no/such/folder/k") == []


def test_pack_takes_a_command_or_a_manifest(tmp_path: Path) -> None:
    found = bash(tmp_path, "gemmill pack ")
    assert {"inspect", "verify", "bf16", "tf32"} <= set(found)
    assert bash(tmp_path, "gemmill pack bf16 --sh") == ["--shapes"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_itself_completes_by_the_script_that_is_printed(tmp_path: Path) -> None:
    main = tmp_path / "gemmill"
    main.write_text(f"#!{sys.executable}\nfrom gemmill.cli import main\nmain()\n")
    main.chmod(0o755)
    script = answer(tmp_path, _GEMMILL_COMPLETE="source_bash")
    code = f"{script}\nCOMP_WORDS=(gemmill select --gpu H100)\nCOMP_CWORD=3\n_gemmill_completion ./gemmill\n"
    command = ["bash", "-c", f'{code}printf "%s\\n" "${{COMPREPLY[@]}}"']
    assert subprocess.check_output(command, text=True, cwd=tmp_path).split() == ["H100-80GB-HBM3", "H100-PCIe"]


def test_parts_end_where_names_differ() -> None:
    names = [f"a_{b}_{c}" for b in ("x", "y") for c in range(50)]
    assert next_parts(names, "") == next_parts(names, "a") == ["a_x_", "a_y_"]
    assert next_parts(names, "a_x") == sorted(f"a_x_{c}" for c in range(50))
    assert next_parts(names, "a_x_4") == sorted(["a_x_4", *(f"a_x_{c}" for c in range(40, 50))])


def test_a_gpu_that_is_completed_is_understood() -> None:
    assert {gpu_named(name).name for name in gpus("")} == {*GPUS}
    assert gpus("NVIDIA-H2") == ["NVIDIA-H200"]
    assert gpu_named("NVIDIA-H200") is gpu_named("h200")
