"""Environments of their own, with the wheel of this checkout: what a reader of the docs starts with."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.cases import shared_folders

ROOT = Path(__file__).parents[2]


def build(source: Path, to: Path) -> Path:
    """Build the sdist of a checkout and the wheel of that sdist into a folder."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return to


def environment(tmp_path_factory: pytest.TempPathFactory, extras: str) -> Path:
    """Install the wheel with some of its extras, once for all workers and pages of a run.

    Args:
        tmp_path_factory: of pytest.
        extras: names, separated by commas.

    Returns:
        The folder of the environment's programs.
    """
    with shared_folders.locked(tmp_path_factory, "environments") as folder:
        wheels = [*(folder / "dist").glob("*.whl")] or [*build(ROOT, folder / "dist").glob("*.whl")]
        made = folder / extras
        if not (made / "installed").exists():
            venv.create(made, clear=True, with_pip=True)
            variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            install = [str(made / "bin" / "pip"), "install", f"{wheels[0]}[{extras}]"]
            done = subprocess.run(install, env=variables, capture_output=True, text=True, check=False)
            assert not done.returncode, done.stdout[-2000:] + done.stderr[-2000:]
            (made / "installed").touch()
    return made / "bin"


def variables(programs: Path, home: Path) -> dict[str, str]:
    """Those of a process that has such programs, an empty home, and nothing else but how pip finds packages."""
    home.mkdir()
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), **pip}
