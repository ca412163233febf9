"""Generates GEMM kernels for NVIDIA Hopper GPUs, and runs the fastest one for each shape.

    >>> import gemmill, torch
    >>> a, b = (torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    >>> d = gemmill.matmul(a, b)

``matmul``, ``grouped_matmul`` and ``array_matmul`` run GEMMs; ``plan`` prepares one for repeated launches; ``moe``
runs a layer of experts, ``lora`` adds the products of adapters, and ``route`` and ``combine`` lead from tokens to the
groups of their experts and back. A ``Registry`` has the kernels of manifests and packs, and selects the one for a
problem. Names are imported on first use, so ``import gemmill`` is cheap and needs neither CUDA nor a GPU.
"""

from __future__ import annotations

from importlib import import_module

from gemmill.library.version import __version__ as __version__

TYPE_CHECKING = False  # instead of typing's, so that typing need not be imported

if TYPE_CHECKING:
    from gemmill.library.arch import Gpu as Gpu
    from gemmill.library.config.model import GemmConfig as GemmConfig
    from gemmill.library.errors import CaptureError as CaptureError
    from gemmill.library.errors import CompileError as CompileError
    from gemmill.library.errors import ConfigError as ConfigError
    from gemmill.library.errors import DeviceError as DeviceError
    from gemmill.library.errors import ExpressionError as ExpressionError
    from gemmill.library.errors import GemmillError as GemmillError
    from gemmill.library.errors import GemmillWarning as GemmillWarning
    from gemmill.library.errors import InstallationError as InstallationError
    from gemmill.library.errors import KeywordError as KeywordError
    from gemmill.library.errors import LayoutError as LayoutError
    from gemmill.library.errors import LockError as LockError
    from gemmill.library.errors import ManifestError as ManifestError
    from gemmill.library.errors import OperandError as OperandError
    from gemmill.library.errors import PackError as PackError
    from gemmill.library.errors import ProblemError as ProblemError
    from gemmill.library.errors import RecordError as RecordError
    from gemmill.library.errors import RemoteError as RemoteError
    from gemmill.library.errors import RemoteWarning as RemoteWarning
    from gemmill.library.errors import RenamedWarning as RenamedWarning
    from gemmill.library.errors import SettingError as SettingError
    from gemmill.library.errors import SettingWarning as SettingWarning
    from gemmill.library.errors import SlowPathWarning as SlowPathWarning
    from gemmill.library.errors import StoreError as StoreError
    from gemmill.library.errors import StoreWarning as StoreWarning
    from gemmill.library.errors import ToolchainError as ToolchainError
    from gemmill.library.errors import TrustError as TrustError
    from gemmill.library.errors import UnsupportedProblemError as UnsupportedProblemError
    from gemmill.library.manifest.kernelset import KernelSet as KernelSet
    from gemmill.library.manifest.load import load_manifest as load_manifest
    from gemmill.library.problem import GemmProblem as GemmProblem
    from gemmill.runtime.api.grouped import array_matmul as array_matmul
    from gemmill.runtime.api.grouped import grouped_matmul as grouped_matmul
    from gemmill.runtime.api.lora import LoraPlan as LoraPlan
    from gemmill.runtime.api.lora import lora as lora
    from gemmill.runtime.api.lora import plan_lora as plan_lora
    from gemmill.runtime.api.matmul import matmul as matmul
    from gemmill.runtime.api.matmul import plan as plan
    from gemmill.runtime.api.matmul import syrk as syrk
    from gemmill.runtime.api.moe import MoePlan as MoePlan
    from gemmill.runtime.api.moe import interleaved as interleaved
    from gemmill.runtime.api.moe import moe as moe
    from gemmill.runtime.api.moe import plan_moe as plan_moe
    from gemmill.runtime.api.prepared import prepare as prepare
    from gemmill.runtime.api.routing import Routing as Routing
    from gemmill.runtime.api.routing import combine as combine
    from gemmill.runtime.api.routing import route as route
    from gemmill.runtime.launch.plan import Plan as Plan
    from gemmill.runtime.native.installed import cmake_dir as cmake_dir
    from gemmill.runtime.native.installed import include_dir as include_dir
    from gemmill.runtime.operands.tensors import PreparedOperand as PreparedOperand
    from gemmill.runtime.registry import Registry as Registry
    from gemmill.runtime.select.choice import Candidate as Candidate
    from gemmill.runtime.select.choice import Choice as Choice
    from gemmill.runtime.select.slow_path import SlowPath as SlowPath
    from gemmill.runtime.storage.artifact import Artifact as Artifact
    from gemmill.runtime.storage.pack import Pack as Pack
    from gemmill.runtime.storage.store import Store as Store

_HOMES = {
    "Artifact": "gemmill.runtime.storage.artifact",
    "Candidate": "gemmill.runtime.select.choice",
    "Choice": "gemmill.runtime.select.choice",
    "GemmConfig": "gemmill.library.config.model",
    "GemmProblem": "gemmill.library.problem",
    "Gpu": "gemmill.library.arch",
    "KernelSet": "gemmill.library.manifest.kernelset",
    "LoraPlan": "gemmill.runtime.api.lora",
    "MoePlan": "gemmill.runtime.api.moe",
    "Pack": "gemmill.runtime.storage.pack",
    "Plan": "gemmill.runtime.launch.plan",
    "PreparedOperand": "gemmill.runtime.operands.tensors",
    "Registry": "gemmill.runtime.registry",
    "Routing": "gemmill.runtime.api.routing",
    "SlowPath": "gemmill.runtime.select.slow_path",
    "Store": "gemmill.runtime.storage.store",
    "array_matmul": "gemmill.runtime.api.grouped",
    "cmake_dir": "gemmill.runtime.native.installed",
    "combine": "gemmill.runtime.api.routing",
    "grouped_matmul": "gemmill.runtime.api.grouped",
    "include_dir": "gemmill.runtime.native.installed",
    "interleaved": "gemmill.runtime.api.moe",
    "load_manifest": "gemmill.library.manifest.load",
    "lora": "gemmill.runtime.api.lora",
    "matmul": "gemmill.runtime.api.matmul",
    "moe": "gemmill.runtime.api.moe",
    "plan": "gemmill.runtime.api.matmul",
    "plan_lora": "gemmill.runtime.api.lora",
    "plan_moe": "gemmill.runtime.api.moe",
    "prepare": "gemmill.runtime.api.prepared",
    "route": "gemmill.runtime.api.routing",
    "syrk": "gemmill.runtime.api.matmul",
    **dict.fromkeys(
        (
            "GemmillError",
            "InstallationError",
            "ManifestError",
            "ConfigError",
            "ProblemError",
            "UnsupportedProblemError",
            "OperandError",
            "KeywordError",
            "ToolchainError",
            "CompileError",
            "StoreError",
            "PackError",
            "TrustError",
            "LayoutError",
            "LockError",
            "RemoteError",
            "DeviceError",
            "CaptureError",
            "RecordError",
            "ExpressionError",
            "SettingError",
            "GemmillWarning",
            "SlowPathWarning",
            "SettingWarning",
            "RenamedWarning",
            "StoreWarning",
            "RemoteWarning",
        ),
        "gemmill.library.errors",
    ),
}
"""The module that defines each public name."""

if not TYPE_CHECKING:  # so that type checkers refuse other names

    def __getattr__(name: str) -> object:
        """Import a public name on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'gemmill' has no attribute {name!r}; public names: {', '.join(_HOMES)}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
