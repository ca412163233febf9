"""gemmill in PyTorch: importing this registers the operators ``torch.ops.gemmill.*``.

A program that compiles calls of ``gemmill.matmul`` needs no import of it; one that loads an exported program does.
"""

from __future__ import annotations

from gemmill.runtime.torch.operators import run_on_cpu as run_on_cpu

__all__ = ["run_on_cpu"]
