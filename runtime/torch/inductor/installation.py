"""Puts the pass and the choice into Inductor's configuration, and takes them out."""

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
from gemmill.runtime.torch.inductor.choices import gemmill_mm
from gemmill.runtime.torch.inductor.replacement import replace_products

_Base: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", custom_graph_pass.CustomGraphPass)
"""Of which newer versions say whether gradients are wanted: a pass before ours may ask."""
_lock = threading.Lock()
_installed: list[GemmillPass] = []
"""The pass that is in, once for each ``install``."""


class GemmillPass(_Base):  # type: ignore[misc]
    """What was in the slot of ``post_grad_custom_pre_pass``, and then gemmill's replacement of products."""

    def __init__(self, before: Any) -> None:
        self.before = before
        """None, a pass, or several."""
        self.is_on = True
        """Whether it replaces: no longer where somebody has put a pass around it since, and holds on to it."""

    def __call__(self, graph: torch.fx.Graph, is_inference: bool = False) -> None:
        """Run them on a graph, which is changed."""
        for graph_pass in self._passes_before():
            asks = _Base is not custom_graph_pass.CustomGraphPass and isinstance(graph_pass, _Base)
            graph_pass(graph, is_inference) if asks else graph_pass(graph)
        if self.is_on:
            replace_products(graph)

    def uuid(self) -> Any:
        """Of gemmill's version, of the source that graphs depend on, of what the pass is to serve, and of the passes
        before; None, so that nothing is cached, where one of these has none."""
        before = []
        for graph_pass in self._passes_before():
            identity = graph_pass.uuid() if isinstance(graph_pass, custom_graph_pass.CustomGraphPass) else None
            if identity is None:
                return None
            before.append(identity)
        on_cpu = torch._C._dispatch_has_kernel_for_dispatch_key("gemmill::mm", "CPU")
        return ("gemmill", __version__, _source(), on_cpu, self.is_on, *before)

    def _passes_before(self) -> list[Any]:
        if self.before is None:
            return []
        return [*self.before] if isinstance(self.before, list | tuple) else [self.before]


@cache
def _source() -> str:
    """Digest of the source of this folder, and of that of expressions."""
    folders = Path(__file__).parent, Path(epilogues.__file__).parent
    files = sorted(path for folder in folders for path in folder.glob("*.py"))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def install() -> None:
    """Have what Inductor compiles from now on run gemmill's operators for products that they serve, with what follows
    folded in, and have ``max_autotune`` time ``gemmill::mm`` too. For all threads; :func:`remove` undoes it, once for
    each call. What has been compiled already stays as it is: ``torch.compiler.reset()`` forgets it."""
    with _lock:
        if not _installed:
            config.post_grad_custom_pre_pass = first = GemmillPass(config.post_grad_custom_pre_pass)
            config.external_matmul = [*config.external_matmul, gemmill_mm]
            _installed.append(first)
        else:
            _installed.append(_installed[-1])


def remove() -> None:
    """Undo one :func:`install`; nothing where there is none. The last one puts back the passes that were there before.
    Where another has been put in since, perhaps around ours, it stays, and ours does nothing any more."""
    with _lock:
        if not _installed:
            return
        ours = _installed.pop()
        if _installed:
            return
        ours.is_on = False
        if config.post_grad_custom_pre_pass is ours:
            config.post_grad_custom_pre_pass = ours.before
        config.external_matmul = [x for x in config.external_matmul if x is not gemmill_mm]


@contextmanager
def passes() -> Iterator[None]:
    """:func:`install` while a block runs. Compiled functions are compiled when they are first called: do so in it."""
    install()
    try:
        yield
    finally:
        remove()
