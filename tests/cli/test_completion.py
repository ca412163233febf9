"""Shell completion, asked as shells ask: by a process with their variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.cases.manifests import ONE
from tests.cli.test_cli import SMALL
from typer.testing import CliRunner

from gemmill.cli import application
from gemmill.cli.completion import gpus, next_parts
from gemmill.library.arch import GPUS, gpu_named


def answer(folder: Path, **variables: str) -> str:
    """What `gemmill` prints in a folder for a shell that sets these variables; it prints no complaint."""
    command = [sys.executable, "-c", "from gemmill.cli import main; main()"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables}, cwd=folder, check=False
    )
    assert done.stderr == ""
    return done.stdout


def in_bash(line: str) -> dict[str, str]:
    return {"_GEMMILL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}


def elsewhere(shell: str, line: str) -> dict[str, str]:
    return {
        "_GEMMILL_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


def printed(variables: dict[str, str]) -> str:
    """What a shell that sets these variables is told, in this process."""
    result = CliRunner().invoke(application(), [], env=variables, prog_name="gemmill")
    assert result.stderr == ""
    return result.stdout


def completed(line: str) -> list[str]:
    """What bash is told."""
    return printed(in_bash(line)).split()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (elsewhere("zsh", "gemmill list f"), '_arguments \'*: :(("f16"\n"f32"\n"fp8"\n"facts.yaml"))\'\n'),
        (elsewhere("fish", "gemmill select --a-dtype e"), "e4m3\ne5m2\ne2m1\n"),
    ],
    ids=["zsh", "fish"],
)
def test_every_shell_is_told_in_its_own_form(
    variables: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "facts.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert printed(variables) == says


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gemmill select --manifest t", ["tf32"]),
        ("gemmill select --shapes l", ["large", "llm"]),
        ("gemmill profile bf16 --shapes q", ["quick"]),
        ("gemmill train records.jsonl --gpu NVIDIA-H200", ["NVIDIA-H200"]),
        ("gemmill bench --d-dtype f6", ["f64"]),
        ("gemmill list f", ["f16", "f32", "fp8", "facts.yaml"]),
        ("gemmill build bf16 --preset q", ["quick"]),
        ("gemmill list own.yaml --preset ", ["small", "tall"]),
        ("gemmill list own.yaml --preset q", []),
        ("gemmill list no.yaml --preset q", []),
        ("gemmill select --a-scale 128", ["128x128", "128x128e8"]),
        ("gemmill bench --bits in", ["invariant"]),
        ("gemmill pack --bits k32", ["k32", "k32f16"]),
        ("gemmill list bf16 --bits k32", ["k32", "k32f16"]),
        ("gemmill roofline --dtypes bf16,e4", ["bf16,e4m3"]),
        ("gemmill serve token new pods --scopes read,", ["read,compile", "read,source", "read,write", "read,admin"]),
        ("gemmill build k", ["k.cu"]),
        ("gemmill shapes sh", ["shapes.csv"]),
        ("gemmill build no/such/folder/k", []),
        ("gemmill pack in", ["inspect", "index", "int8"]),
        ("gemmill pack bf16 --sh", ["--shapes"]),
    ],
)
def test_every_place_takes_what_is_of_it(
    line: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("facts.yaml", "facts.txt", "k.cu", "shapes.csv"):
        (tmp_path / name).touch()
    (tmp_path / "own.yaml").write_text(ONE + "presets: {small: {where: tile.m == 64}, tall: {where: tile.n == 32}}\n")
    monkeypatch.chdir(tmp_path)
    assert completed(line) == found


FREE = {
    *("M,N,K", "M,N,K[,L]", "M,N", "M,...", "K,...", "N,...", "NxHxW", "TEXT", "FILTER", "SIZES", "ID", "KEY", "KEYS"),
    *("CONFIG", "NAME=N,..."),
    *("N", "N|all", "BYTES", "TIME", "SECONDS", "FRACTION", "FILE", "DIR", "PACK", "RECORDS", "URL", "ADDRESS"),
    "REFERENCE",
}
"""Words for values that cannot be listed, or that a shell completes itself."""


def test_every_value_that_can_be_listed_is_completed() -> None:
    def parameters(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for parameter in command.params:
            yield path, parameter
        for name, inner in getattr(command, "commands", {}).items():
            yield from parameters(inner, f"{path} {name}")

    for path, parameter in parameters(typer.main.get_command(application()), "gemmill"):
        option, is_flag = parameter.opts[0], getattr(parameter, "is_flag", False)
        is_free = parameter.metavar in FREE or option in ("--name", "--allow-host", "name")
        if not is_flag and not is_free and parameter._custom_shell_complete is None:
            assert completed(f"{path} {option} "), f"{path} {option}: complete it, or add its word to FREE"


@pytest.mark.slow
def test_kernels_are_completed_a_part_at_a_time_until_few_are_left() -> None:
    arches = completed("gemmill emit ")
    assert "sm90a_" in arches
    assert all(arch.count("_") == 1 for arch in arches)
    operands = completed("gemmill bench --kernel sm90a_e4m3k16s")
    assert len(operands) > 1
    assert all(name.startswith("sm90a_e4m3k16s1x128_") for name in operands)
    tile = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_"
    assert f"{tile}cooperative_s4_m8_k1_linear" in completed(f"gemmill diff {SMALL} {tile}")
    assert completed("gemmill explain nothing_is_called_so") == []


@pytest.mark.slow
@pytest.mark.heavy
def test_a_store_that_keeps_nothing_costs_time_and_no_completion(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    variables = in_bash("gemmill emit sm90a_")
    assert "sm90a_bf16k16_" in answer(tmp_path, **variables, GEMMILL_STORE=str(tmp_path / "file"))


def test_what_goes_wrong_completes_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMILL_STORE", "relative")
    assert completed("gemmill emit sm90a_") == []


@pytest.mark.slow
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
    assert gpus("NVIDIA-H200") == ["NVIDIA-H200"]
    assert gpu_named("NVIDIA-H200") is gpu_named("h200")
