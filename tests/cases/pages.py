"""What pages of the docs show, run as a reader would: in order, in one folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").iterdir())
ON_GPU = "<!-- needs a GPU -->"
"""Stands above a block that does."""

_BLOCK = re.compile(rf"(^{ON_GPU}\n)?^```(yaml|sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_page(page: Path, folder: Path, gpu: bool) -> int:
    """Run the blocks of a page in a folder beside ``examples``, those that need a GPU if there is one: a manifest or
    suite is saved by its name, commands and programs must succeed. How many commands and programs were run."""
    count = 0
    (folder / "examples").symlink_to(ROOT / "examples")
    for needs_gpu, kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if needs_gpu and not gpu:
            continue
        if kind == "yaml":
            (name,) = re.findall(r"\Aname: (\w+)$", text, re.MULTILINE)
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
            continue
        command = shell(text) if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=600, check=False)
        assert not done.returncode, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        count += 1
    return count


def shell(text: str) -> list[str]:
    """A command that runs lines of a shell, as far as they succeed, with this interpreter's python and gemmill."""
    python = f'python() {{ "{sys.executable}" "$@"; }}\ngemmill() {{ python -m gemmill "$@"; }}'
    return ["bash", "-c", f"set -e\n{python}\n{text}"]
