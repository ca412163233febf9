"""Adds gemmill's graph pass to Inductor's configuration, and removes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config, custom_graph_pass

from gemmill.library import epilogues
from gemmill.library.version import __version__
from gemmill.runtime.torch.inductor import lowering as lowering  # registers operators and their lowerings
from gemmill.runtime.torch.inductor.replacement import replace_products
from gemmill.runtime.torch.takeover.blocks import ENABLED

_Base: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", custom_graph_pass.CustomGraphPass)
"""Newer versions of this class also pass ``is_inference``, which an earlier pass may need."""
_lock = threading.Lock()
_installed: list[GemmillPass] = []
"""The installed pass, once for each ``install``."""


class GemmillPass(_Base):  # type: ignore[misc]
    """Runs the passes that were in ``post_grad_custom_pre_pass`` before, then replaces products."""

    def __init__(self, before: Any) -> None:
        self.before = before
        """None, a pass, or a list of passes."""
        self.is_on = True
        """Whether it replaces products. False after removal: another pass that wraps this one may still call it."""

    def __call__(self, graph: torch.fx.Graph, is_inference: bool = False) -> None:
        """Run all passes on a graph, in place."""
        for graph_pass in self._passes_before():
            takes_mode = _Base is not custom_graph_pass.CustomGraphPass and isinstance(graph_pass, _Base)
            graph_pass(graph, is_inference) if takes_mode else graph_pass(graph)
        if self.is_on:
            replace_products(graph, ENABLED.setting)

    def uuid(self) -> Any:
        """The key for Inductor's caches: gemmill's version, a digest of the source that affects graphs, whether the CPU
        is supported, the setting that holds, and the keys of earlier passes. None if an earlier pass has none; Inductor
        then caches nothing."""
        before = []
        for graph_pass in self._passes_before():
            identity = graph_pass.uuid() if isinstance(graph_pass, custom_graph_pass.CustomGraphPass) else None
            if identity is None:
                return None
            before.append(identity)
        on_cpu = torch._C._dispatch_has_kernel_for_dispatch_key("gemmill::mm", "CPU")
        return ("gemmill", __version__, _source(), on_cpu, self.is_on, ENABLED.setting, *before)

    def _passes_before(self) -> list[Any]:
        if self.before is None:
            return []
        return [*self.before] if isinstance(self.before, list | tuple) else [self.before]


@cache
def _source() -> str:
    """A digest of the source of this folder and of expressions."""
    folders = Path(__file__).parent, Path(epilogues.__file__).parent
    files = sorted(path for folder in folders for path in folder.glob("*.py"))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def install() -> None:
    """Make Inductor use gemmill's operators for supported products, with fused epilogues, in all later compilations.

    ``max_autotune`` also times ``gemmill::mm``. This applies to all threads. Each call needs one :func:`remove`.
    Programs that are already compiled do not change until ``torch.compiler.reset()``.
    """
    with _lock:
        if not _installed:
            config.post_grad_custom_pre_pass = first = GemmillPass(config.post_grad_custom_pre_pass)
            _installed.append(first)
        else:
            _installed.append(_installed[-1])


def remove() -> None:
    """Undo one :func:`install`, if any. The last call restores the earlier passes. If another pass has been set since
    then, it stays, and gemmill's pass stops replacing products."""
    with _lock:
        if not _installed:
            return
        installed = _installed.pop()
        if _installed:
            return
        installed.is_on = False
        if config.post_grad_custom_pre_pass is installed:
            config.post_grad_custom_pre_pass = installed.before


@contextmanager
def passes() -> Iterator[None]:
    """:func:`install` while a block runs. PyTorch compiles a function at its first call, so make that call in the
    block."""
    install()
    try:
        yield
    finally:
        remove()
