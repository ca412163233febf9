"""The ladder of examples/ and its page, as far as no GPU is needed; tests/gpu/test_ladder.py climbs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples.ladder import climb
from tests.cli.test_cli import ok

from gemmill.library.anatomy.raster import Raster
from gemmill.library.arch import GPUS
from gemmill.library.config.names import kernel_name

PAGE = climb.PAGE.read_text(encoding="utf-8")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(climb.__file__)), *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, text=True, capture_output=True, timeout=300, check=False, env=environment)


def test_the_last_of_eight_steps_is_as_fast_as_the_kernel_that_is_selected() -> None:
    steps = climb.ladder()
    assert len(steps) == 8
    mnk = ",".join(map(str, climb.MNK))
    top = json.loads(ok("select", "--mnkl", mnk, "--objective", "burst", "--gpu", "H200", "--top", "5", "--json"))
    us = {kernel["name"]: kernel["us"] for kernel in top["ranking"]}
    assert us[kernel_name(steps[-1].config)] < 1.01 * min(us.values())


def test_the_page_says_what_each_step_changes_and_shows_it() -> None:
    _, *sections = re.split(r"^## Step \d: ", PAGE, flags=re.M)
    steps = climb.ladder()
    assert len(sections) == len(steps)
    before: list[str] = []
    for section, step in zip(sections, steps, strict=True):
        own = (climb.HERE / f"{step.name}.yaml").read_text().splitlines()
        assert f"{{literalinclude}} ../../examples/ladder/{step.name}.yaml\n" in section
        assert re.findall(r"^Changed: (.*)\.$", section, re.M) == ([step.changed] if step.changed else [])
        marked = [int(line) for found in re.findall(r":emphasize-lines: (.*)", section) for line in found.split(",")]
        assert marked == [i for i, line in enumerate(own, 1) if before and i > 2 and line not in before]
        before = own


def test_the_tables_of_the_page_are_what_its_command_makes() -> None:
    assert climb.page(PAGE) == PAGE, "run python examples/ladder/climb.py --page"


def test_the_last_step_halves_what_a_wave_reads_as_the_page_says() -> None:
    clusters = GPUS["NVIDIA H200"].sms // 2
    assert f"holds {clusters} clusters of two" in PAGE
    blocks = []
    for step in climb.ladder()[-2:]:
        order = Raster.of(step.config, *climb.MNK[:2])
        wave = [order.origin(index) for index in range(clusters)]
        blocks.append((len({m for m, _ in wave}), len({n for _, n in wave})))
    assert blocks == [(32, 3), (9, 8)]


def test_without_a_gpu_it_says_what_it_needs() -> None:
    done = run()
    assert done.returncode == 3
    assert done.stderr.startswith("timing needs a Hopper GPU and PyTorch")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("mnk", ["8192", "0,64,64", "64,64,x"])
def test_extents_that_are_none_are_refused(mnk: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (argparse says the rest)
        climb.extents(mnk)


@pytest.mark.heavy
def test_all_steps_compile_and_spill_nothing() -> None:
    done = run("--dry")
    assert not done.returncode, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert rows[0][-2:] == ["registers", "spilled"]
    assert [row[0] for row in rows[2:]] == [step.name for step in climb.ladder()]
    assert {row[-1] for row in rows[2:]} == {"0 B"}
