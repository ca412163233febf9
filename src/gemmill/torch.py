"""gemmill in PyTorch: importing this registers the operators ``torch.ops.gemmill.*``.

A program that compiles calls of ``gemmill.matmul`` needs no import of it; one that loads an exported program does.
"""

from __future__ import annotations

from gemmill.runtime.torch.layers.conversion import convert as convert
from gemmill.runtime.torch.layers.linear import Linear as Linear
from gemmill.runtime.torch.operators import run_on_cpu as run_on_cpu
from gemmill.runtime.torch.takeover.overrides import enabled as enabled
from gemmill.runtime.torch.takeover.overrides import install as install
from gemmill.runtime.torch.takeover.stats import Stats as Stats
from gemmill.runtime.torch.takeover.stats import reset_stats as reset_stats
from gemmill.runtime.torch.takeover.stats import stats as stats

__all__ = ["Linear", "Stats", "convert", "enabled", "install", "reset_stats", "run_on_cpu", "stats"]
