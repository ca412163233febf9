"""Rewrites the golden texts after a deliberate change of the emitter: ``python tests/emitters/golden.py [NAME ...]``.

A kernel named on the command line is added; every kernel that has a golden text is emitted again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name

GOLDEN = Path(__file__).parent / "golden"

if __name__ == "__main__":
    for name in sorted({*sys.argv[1:], *(path.stem for path in GOLDEN.glob("*.cu"))}):
        (GOLDEN / f"{name}.cu").write_text(emit(parse_name(name)).text)
