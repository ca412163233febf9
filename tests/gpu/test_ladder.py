"""examples/ladder/climb.py on a problem whose last tiles are cut: every step right, timed, and set beside torch.mm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from examples.ladder import climb

pytestmark = pytest.mark.gpu


def test_every_step_is_right_and_timed(tmp_path: Path) -> None:
    to = tmp_path / "times.json"
    command = [sys.executable, str(Path(climb.__file__)), "--mnk", "520,776,1032", "--rounds", "2", "--json", str(to)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=600, check=False)
    assert not done.returncode, done.stderr
    found = json.loads(to.read_text())
    assert [row["step"] for row in found["steps"]] == [step.name for step in climb.ladder()]
    assert all(row["verified"] and row["ms"] > 0 and row["of_torch"] > 0 for row in found["steps"])
    assert [row["of_step_before"] is None for row in found["steps"]] == [True, *[False] * 7]
    assert climb.time_table(found) in done.stdout
