"""gemmill for PyTorch: ``enabled`` and ``install`` run a program's matmuls on gemmill, ``stats`` counts them,
``convert``, ``Linear`` and ``Experts`` quantise layers, ``mxfp4`` reads such weights, ``moe`` runs a layer of experts,
and ``lora`` adapters.

Importing this module registers the operators ``torch.ops.gemmill.*``. A process that loads an exported program must
import it first. A program that compiles its own calls of ``gemmill.matmul`` need not. It also gives transformers'
models ``experts_implementation="gemmill"``.
"""

from __future__ import annotations

from gemmill.runtime.torch.experts import moe as moe
from gemmill.runtime.torch.layers import transformers_experts
from gemmill.runtime.torch.layers.conversion import convert as convert
from gemmill.runtime.torch.layers.experts import Experts as Experts
from gemmill.runtime.torch.layers.linear import Linear as Linear
from gemmill.runtime.torch.layers.mxfp4 import mxfp4 as mxfp4
from gemmill.runtime.torch.layers.packed_experts import packed_experts as packed_experts
from gemmill.runtime.torch.lora import lora as lora
from gemmill.runtime.torch.newton_schulz import newton_schulz as newton_schulz
from gemmill.runtime.torch.operators import run_on_cpu as run_on_cpu
from gemmill.runtime.torch.takeover.overrides import enabled as enabled
from gemmill.runtime.torch.takeover.overrides import install as install
from gemmill.runtime.torch.takeover.stats import Stats as Stats
from gemmill.runtime.torch.takeover.stats import reset_stats as reset_stats
from gemmill.runtime.torch.takeover.stats import stats as stats

__all__ = [
    "Experts",
    "Linear",
    "Stats",
    "convert",
    "enabled",
    "install",
    "lora",
    "moe",
    "mxfp4",
    "newton_schulz",
    "packed_experts",
    "reset_stats",
    "run_on_cpu",
    "stats",
]

transformers_experts.register()
