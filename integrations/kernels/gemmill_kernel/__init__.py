"""gemmill as a kernel of Hugging Face's ``kernels``: the package and a pack of compiled kernels, in one folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
os.environ.setdefault("GEMMILL_PACKS", str(_FOLDER / "kernels.pack"))
sys.path.append(str(_FOLDER))  # an installed gemmill comes before the one in this folder

import gemmill.torch  # noqa: E402
from gemmill import grouped_matmul, matmul  # noqa: E402

from . import layers  # noqa: E402, TID252 - the name of this package is the kernel's id

enabled = gemmill.torch.enabled

__all__ = ["enabled", "grouped_matmul", "layers", "matmul"]
