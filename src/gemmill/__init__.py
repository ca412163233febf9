"""gemmill mills GEMM kernels: manifest -> configs -> CUDA C++ -> cubins -> the best kernel for each shape.

Names are imported when first used, so ``import gemmill`` costs nothing and needs neither CUDA nor a GPU.
"""

from __future__ import annotations

from importlib import import_module

from gemmill.library.version import __version__ as __version__

TYPE_CHECKING = False  # typing's, which need not be imported for it

if TYPE_CHECKING:
    from gemmill.library.config.model import GemmConfig as GemmConfig
    from gemmill.library.errors import GemmillError as GemmillError
    from gemmill.library.manifest.load import load_manifest as load_manifest
    from gemmill.library.problem import GemmProblem as GemmProblem
    from gemmill.runtime.api.grouped import array_matmul as array_matmul
    from gemmill.runtime.api.grouped import grouped_matmul as grouped_matmul
    from gemmill.runtime.api.matmul import matmul as matmul
    from gemmill.runtime.api.matmul import plan as plan
    from gemmill.runtime.launch.plan import Plan as Plan
    from gemmill.runtime.registry import Registry as Registry
    from gemmill.runtime.select.choice import Choice as Choice

_HOMES = {
    "Choice": "gemmill.runtime.select.choice",
    "GemmConfig": "gemmill.library.config.model",
    "GemmProblem": "gemmill.library.problem",
    "GemmillError": "gemmill.library.errors",
    "Plan": "gemmill.runtime.launch.plan",
    "Registry": "gemmill.runtime.registry",
    "array_matmul": "gemmill.runtime.api.grouped",
    "grouped_matmul": "gemmill.runtime.api.grouped",
    "load_manifest": "gemmill.library.manifest.load",
    "matmul": "gemmill.runtime.api.matmul",
    "plan": "gemmill.runtime.api.matmul",
}
"""The module that defines each public name."""

if not TYPE_CHECKING:  # so that type checkers refuse names that are not public

    def __getattr__(name: str) -> object:
        """Import a public name on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'gemmill' has no attribute {name!r}; public names: {', '.join(_HOMES)}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
