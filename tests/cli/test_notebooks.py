"""Notebooks of examples/ run from start to end, and hold what they printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.heavy
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(notebook: Path, tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] or "print" not in "".join(cell["source"]) for cell in cells)
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    script = "\n\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, text=True, capture_output=True, check=False)
    assert not done.returncode, done.stderr
