"""emit and diff: what a kernel is made of, and what tells two apart."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_cli import SMALL, gemmill, ok

from gemmill.cli.output import Status
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.cubin import Cubin


def written(*arguments: str | Path) -> bytes:
    """What a command in a process of its own writes to a pipe."""
    return subprocess.check_output([sys.executable, "-m", "gemmill", *map(str, arguments)])


@pytest.mark.slow
def test_emit_writes_what_runs_and_text_of_it(tmp_path: Path) -> None:
    artifact = Registry(manifests=()).get(SMALL)
    ok("emit", SMALL, "--cubin", "-o", tmp_path / "k.cubin")
    assert (tmp_path / "k.cubin").read_bytes() == artifact.cubin
    assert written("emit", SMALL, "--cubin") == artifact.cubin
    ptx = ok("emit", SMALL, "--ptx")
    assert f".entry {artifact.launch.entry}(" in ptx
    assert "wgmma.mma_async" in ptx
    assert ".loc" not in ptx
    sass = json.loads(ok("emit", SMALL, "--sass", "--json"))
    assert sass["form"] == "sass"
    assert "HGMMA" in sass["text"]


@pytest.mark.slow
def test_line_information_names_lines_of_the_page_and_of_the_headers(tmp_path: Path) -> None:
    ok("emit", SMALL, "--lineinfo", "-o", tmp_path / "k.cubin")
    cubin = (tmp_path / "k.cubin").read_bytes()
    assert Cubin(cubin).registers(emit(parse_name(SMALL)).entry)
    assert b".debug_line" in cubin
    sass = ok("emit", SMALL, "--sass", "--lineinfo")
    assert 'gemmill.cu", line' in sass
    assert 'tma_wgmma.cuh", line' in sass


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ptx", "--cubin"), "--ptx and --cubin exclude each other"),
        (("--cubin", "--json"), "name a file for it with -o FILE"),
    ],
)
def test_emit_refuses_what_cannot_be_written(arguments: tuple[str, ...], says: str) -> None:
    result = gemmill("emit", SMALL, *arguments)
    assert result.exit_code == Status.USAGE
    assert says in result.stderr


@pytest.mark.slow
def test_a_cubin_is_not_written_to_a_terminal_that_nobody_asked_to_have_it() -> None:
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "gemmill", "emit", SMALL, "--cubin"]
    result = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    os.close(terminal)
    assert result.returncode == Status.USAGE
    assert "name a file with -o FILE, or write it here with -o -" in result.stderr


@pytest.mark.slow
def test_without_a_disassembler_emit_says_what_to_install() -> None:
    hidden = """
import sys, cuda.pathfinder
cuda.pathfinder.find_nvidia_binary_utility = lambda name: None
from gemmill.cli import main
main()
"""
    command = [sys.executable, "-c", hidden, "emit", SMALL, "--sass"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": ""}, check=False)
    assert result.returncode == Status.MISSING
    assert "no disassembler here" in result.stderr
    assert "pip install nvidia-cuda-nvdisasm" in result.stderr
