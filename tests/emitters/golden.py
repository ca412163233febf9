"""Rewrites the golden texts after a deliberate change of the emitter: ``python -m tests.emitters.golden``.

They are those of the kernels in ``tests/cases/kernels.yaml`` under ``golden``; texts of others are removed.
"""

from __future__ import annotations

from pathlib import Path

from tests.cases.kernels import GOLDEN

from gemmill.emitters.emit import emit

FOLDER = Path(__file__).parent / "golden"

if __name__ == "__main__":
    texts = {f"{case.name}.cu": emit(case.config).text for case in GOLDEN}
    for path in FOLDER.glob("*.cu"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text)
