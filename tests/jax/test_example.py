"""examples/jax_block.py, tried without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_block.py"


def test_a_block_learns_by_gemmill_as_it_does_by_xla() -> None:
    command = [sys.executable, str(EXAMPLE), "--device", "cpu", "--tiny", "--steps", "5"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    of_xla, ours = ([float(x) for x in re.findall(r"\d\.\d{4}", line)] for line in said.splitlines())
    assert ours == pytest.approx(of_xla, rel=0.01)
    assert ours[1] < ours[0] / 2
