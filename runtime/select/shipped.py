"""Files that ship for GPUs that were measured: trees, and what was the fastest, which ``benchmarks/fit.py`` writes, and
decision trees of quick selection, which ``benchmarks/quick.py`` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemmill.library.errors import RecordError

FOLDER = Path(__file__).parents[1] / "models"
"""Where they are."""


def path_of(gpu: str, what: str) -> Path:
    """The file of a GPU, by the name of its row in library/arch.py, that holds ``trees``, what was ``measured`` or what
    is ``quick``."""
    return FOLDER / f"{gpu.lower().replace(' ', '-')}.{what}.json"


def content_of(gpu: str, what: str, version: int) -> dict[str, Any] | None:
    """What the file holds; None where nobody has measured the GPU.

    Raises:
        RecordError: the file is of another version.
    """
    path = path_of(gpu, what)
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    if content["version"] != version:
        script = "quick" if what == "quick" else "fit"
        raise RecordError(
            f"{path}: version {content['version']}, not {version}: make it again (benchmarks/{script}.py)"
        )
    return content
