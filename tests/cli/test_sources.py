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
        (("--ptx", "--cubin"), "both --ptx and --cubin are given"),
        (("--cubin", "--json"), "write it to a file with -o FILE"),
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
    assert "write it to a file with -o FILE, or pass -o -" in result.stderr


def without_disassembler(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command where nvdisasm is nowhere."""
    hidden = """
import cuda.pathfinder
cuda.pathfinder.find_nvidia_binary_utility = lambda name: None
from gemmill.cli import main
main()
"""
    command = [sys.executable, "-c", hidden, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": ""}, check=False)


@pytest.mark.slow
def test_without_a_disassembler_emit_says_what_to_install() -> None:
    result = without_disassembler("emit", SMALL, "--sass")
    assert result.returncode == Status.MISSING
    assert "nvdisasm was not found" in result.stderr
    assert "pip install nvidia-cuda-nvdisasm" in result.stderr


OTHER = SMALL.replace("_64x32x64_", "_64x64x64_")


@pytest.mark.slow
def test_diff_says_what_differs_of_two_configs() -> None:
    found = json.loads(ok("diff", SMALL, OTHER, "--json"))
    assert found["schema"] == "gemmill.diff/1"
    assert (found["a"]["name"], found["b"]["name"]) == (SMALL, OTHER)
    assert found["a"]["arithmetic"] == found["b"]["arithmetic"] == "k16"
    assert found["fields"] == {"tile.n": {"a": 32, "b": 64}}
    assert found["resources"]["accumulator registers a thread"] == {"a": 16, "b": 32}
    artifact = Registry(manifests=()).get(SMALL)
    assert found["resources"]["registers a thread at launch"]["a"] == artifact.resources.registers
    a, b = ({name: of[side] for name, of in found["instructions"].items()} for side in "ab")
    for counts in (a, b):
        assert counts.pop("all") == sum(counts.values())
    assert a["tensor cores"] > 0
    assert found["missing"] == []
    assert f"-gemmill_{SMALL}(__grid_constant__ Kernel::Params const params) {{" in found["source"]


@pytest.mark.slow
def test_diff_takes_an_edited_page(tmp_path: Path) -> None:
    page = tmp_path / "k.cu"
    page.write_text(emit(parse_name(SMALL)).text.replace("kSwizzle = 1", "kSwizzle = 2"))
    said = ok("diff", SMALL, page)
    assert "fields that differ" not in said
    assert f"A  {SMALL}, arithmetic k16\nB  {SMALL}+src." in said
    assert "arithmetic unknown, because the source is edited" in said
    assert "\n-  static constexpr int kSwizzle = 1;\n+  static constexpr int kSwizzle = 2;\n" in said
    assert "the sources are equal" in ok("diff", SMALL, SMALL)


@pytest.mark.slow
def test_diff_says_which_tool_is_missing() -> None:
    found = json.loads(without_disassembler("diff", SMALL, OTHER, "--json").stdout)
    assert found["instructions"] == {}
    assert found["resources"]["registers a thread at launch"]["a"] > 0
    (says,) = found["missing"]
    assert says.startswith("no instruction counts: nvdisasm was not found")
