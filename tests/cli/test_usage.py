"""Wrong command lines: each command exits with 2 and names what is wrong, before it does any work."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from tests.cases.manifests import ONE
from tests.cli.test_cli import SMALL, gemmill, leaves, ok
from tests.library.test_records import MEASURED

from gemmill.cli import application
from gemmill.cli.app import INSTEAD
from gemmill.cli.output import Status

LEAVES = [*leaves(typer.main.get_command(application()))]
WRONG: Mapping[str, tuple[str, ...]] = {
    "build": ("nosuch", "none.cu", "{manifest} --preset nosuch", "{manifest} --kernel x", "{manifest} -j 0"),
    "demo": ("nosuch", "{manifest}"),
    "diff": ("{kernel}", "{kernel} nosuch"),
    "doctor": ("extra", "--store {file}"),
    "draw": ("{kernel}", "{kernel} -o x.png", "nosuch -o x.svg", "{kernel} -o x.svg --problem 64x64"),
    "emit": ("nosuch", "none.cu", "{kernel} --cubin --ptx", "{kernel} -o none/x.cu"),
    "explain": ("", "nosuch", "none.yaml", ".", "bf16", "{kernel} two"),
    "key new": ("", "{file}", "none/key.pem"),
    "key show": ("none",),
    "layout": ("", "(4", "4:1 -o x.png", "4:1 --format nosuch", "4:1 -o none/x.svg"),
    "list": (
        *("nosuch", "bf16 --preset nosuch", "bf16 --count --refused", "--count", "bf16 --coverage"),
        *("bf16 --where tile.n>", "bf16 --where tile.q==1", "bf16 --where a.dtype=='bf61'"),
    ),
    "lock": (
        *("quick", "nosuch -o x.lock", "--problem 64x64 -o x.lock", "quick -o none/x.lock", "-o x.lock"),
        "quick -o x.lock --bits x",
    ),
    "oracle": (
        *("", "--mnkl 64,64", "--mnkl 64,64,64,2", "--mnkl 64,64,64 --bits any", "--mnkl 64,64,64 --slices 2"),
        *("--mnkl 64,64,64 --operands {file}", "--mnkl 64,64,64 --operands none", "--mnkl 64,64,64 -o x.txt"),
        *("--mnkl 64,64,64 --kernel nosuch", "--mnkl 64,64,64 -o none/x.npy", "--mnkl 64,64,64 --seed -1"),
    ),
    "pack index": ("", "none -o x", "{file} --sign none -o x"),
    "pack inspect": ("", "none", "."),
    "pack make": (
        *("bf16", "nosuch -o x", "bf16 -o .", "{manifest} -o {manifest}", "bf16 -o none/x", "bf16 -o x --regret 1"),
        *(
            "bf16 -o x --shapes quick --budget 1Q",
            "bf16 -o x --preset nosuch",
            "bf16 -o x --sign none",
            "bf16 -o x --bits k16",
        ),
    ),
    "pack pull": ("", "{file}", "oci://registry/one", "oci://registry/one:1 -o none/x"),
    "pack push": ("{file}", "none oci://registry/one:1", "{file} registry/one:1"),
    "pack sign": ("{file}", "none --sign {file}"),
    "pack verify": ("none", "{file} --index none"),
    "profile": (
        *("bf16", "bf16 --shapes nosuch", "bf16 --shapes quick --budget 10", "bf16 --shapes quick --budget 0m"),
        *("bf16 --shapes quick --budget 10m --exhaustive", "bf16 --shapes quick --gpus 0", "bf16 --problem 64x64"),
        *("bf16 --shapes quick --gpus 2 --scheduler tls://a:1", "bf16 --shapes quick --scheduler ="),
        *("bf16 --shapes quick --records none/r.jsonl", "{manifest} --shapes quick --scheduler tcp://127.0.0.1:1"),
        "bf16 --shapes quick --bits fast",
    ),
    "model": (
        "",
        "none",
        ". --tokens 0",
        ". --tokens 1x2",
        ". --tp 0",
        ". --images 224",
        ". --dims seq",
        ". --dims seq=1,seq=2",
        ". --quantization fast",
    ),
    "records pack": ("none -o x.parquet", "{file} -o x.txt", "{file} -o none/x.parquet"),
    "report": ("{file}", "none --csv x.csv", ". --csv x.csv", "{file} --csv none/x.csv"),
    "roofline": ("--dtypes nosuch", "--records none", "-o none/x.json"),
    "bench": (
        *("", "--mnkl 64,64", "--mnkl 64,64,64 --kernel nosuch", "--mnkl 64,64,64 --kernel {kernel} --top 2"),
        *(
            "--mnkl 64,64,64 --kernel {kernel} --slices 3",
            "--mnkl 64,64,64 --tile 1,2",
            "--mnkl 64,64,64 --cluster 1,1",
            "--mnkl 64,64,64 --bits k16/stream@64",
        ),
        *("--mnkl 64,64,64 --cluster 1,1", "--mnkl 64,64,64 --sizes balanced"),
    ),
    "select": (
        *("", "--mnkl 64,64", f"--mnkl {2**31 - 4095},128,128", f"--mnkl {'9' * 5000},1,1", "--mnkl 64,64,-3"),
        *("--mnkl 64,64,64 --promoted", "--mnkl 64,64,64 --a-dtype f65", "--mnkl 64,64,64 --c-major m"),
        *(
            "--mnkl 64,64,64 --pack none",
            "--mnkl 64,64,64 --pack .",
            "--mnkl 64,64,64 --pack oci://registry/one",
            "--mnkl 64,64,64 --manifest nosuch",
            "--shapes nosuch",
            "--model none",
        ),
        "--mnkl 64,64,64 --bits fast",
    ),
    "serve": (
        "--port 99999",
        "--host 0.0.0.0",
        "--tokens none",
        "--tls-cert {file}",
        "--tokens {file}",
        "--scheduler tcp://a:1",
    ),
    "serve token new": ("", "a --scopes nosuch", "a --days 0"),
    "shapes": ("nosuch", "{file} --m x"),
    "store clear": ("", "--store {file} --yes"),
    "store list": ("--store {file}",),
    "store path": ("--store",),
    "store prune": ("--store {file}",),
    "store pull": ("bf16", "nosuch --remote http://127.0.0.1:9", "bf16 --remote nosuch"),
    "store push": ("", "--remote nosuch", "--remote http://127.0.0.1:9 --sign none"),
    "store stats": ("--store {file}/store",),
    "store verify": ("--store {file}",),
    "train": ("{file}", "none -o x"),
    "validate": ("", "nosuch"),
    "warm": ("", "none", "."),
}
"""Wrong arguments of every command, separated by blanks; ``=`` is an empty one."""
TABLE = [pytest.param(command, line, id=f"{command} {line:.40}") for command, lines in WRONG.items() for line in lines]


def test_every_command_has_wrong_command_lines() -> None:
    assert {*WRONG} == {" ".join(path) for path in LEAVES} | {"serve"}


@pytest.mark.parametrize(("command", "line"), TABLE)
def test_a_wrong_command_line_exits_with_2(
    command: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (file := tmp_path / "file").write_text("some text\n")
    (manifest := tmp_path / "one.yaml").write_text(ONE)
    before = sorted(tmp_path.rglob("*"))
    words = line.format(kernel=SMALL, file=file, manifest=manifest).split()
    result = gemmill(*command.split(), *("" if word == "=" else word for word in words))
    assert result.exit_code == Status.USAGE, result.output
    assert "rror: " in result.stderr
    assert sorted(tmp_path.rglob("*")) == before, "nothing is done"


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_an_unknown_option_is_a_wrong_command_line(path: tuple[str, ...]) -> None:
    result = gemmill(*path, "--no-such-option")
    assert result.exit_code == Status.USAGE
    assert "No such option: --no-such-option" in result.stderr


def test_an_unknown_gpu_is_the_same_error_everywhere(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(f"{MEASURED.model_dump_json()}\n")
    with_gpu = [path for path in LEAVES if "--gpu " in ok(*path, "--help")]
    assert len(with_gpu) >= 5
    errors = {
        gemmill(*path, *((tmp_path / "r.jsonl", "-o", tmp_path) if path == ("train",) else ()), "--gpu", "B200")
        .stderr.strip()
        .splitlines()[-1]
        for path in with_gpu
    }
    (error,) = errors
    assert error.startswith("Error: Invalid value for '--gpu': 'B200' is none of NVIDIA H200, ")


def test_words_of_other_programs_name_the_command_to_use() -> None:
    root = typer.main.get_command(application())
    options = {name for option in root.params for name in option.opts} | {"--help"}
    for word, instead in INSTEAD.items():
        result = gemmill(*word.split())
        assert result.exit_code == Status.USAGE
        assert f"use `gemmill {instead}`" in result.stderr, word
        assert instead in options or ok(*instead.split(), "--help"), word


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals")
@pytest.mark.parametrize(("answer", "status", "says"), [("y", 0, "0 kernels removed"), ("n", 1, "Aborted")])
def test_store_clear_asks_in_a_terminal(answer: str, status: int, says: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    command = [sys.executable, "-m", "gemmill", "store", "clear", "--store", str(tmp_path)]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == status
    assert f"Remove 0 kernels and the cached results in {tmp_path}? [y/N]" in done.stderr
    assert says in done.stdout + done.stderr
