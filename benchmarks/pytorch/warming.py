"""Kernels that steps need, compiled in parallel before any step is timed.

A run is asked which kernels it would load: of an eager step the products that PyTorch dispatches, of a compiled one the
calls of our operators, which for that one run launch nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gemmill
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.runtime.api import caches, prepare
from gemmill.runtime.torch.launches import AT_KERNEL
from gemmill.runtime.torch.operators import LIBRARY, OPERATORS, _adapted, _positional, register_kernels

_aten: Any = torch.ops.aten
_CALLS: dict[Any, Callable[..., Any]] = {
    _aten.mm.default: lambda a, b: gemmill.matmul(a, b),
    _aten.bmm.default: lambda a, b: gemmill.matmul(a, b),
    _aten.addmm.default: lambda c, a, b, beta=1, alpha=1: gemmill.matmul(a, b, c=c, alpha=alpha, beta=beta),
    _aten.baddbmm.default: lambda c, a, b, beta=1, alpha=1: gemmill.matmul(a, b, c=c, alpha=alpha, beta=beta),
    _aten._grouped_mm.default: lambda a, b, ends=None, *_, **__: gemmill.grouped_matmul(a, b, ends),
}
"""Our calls for what PyTorch dispatches."""


class _Found(Exception):
    """Instead of a kernel that would be loaded."""


class Needed(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Notes the kernel of each product that is dispatched in it; the products themselves run as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _CALLS and made.is_cuda:
            with torch.no_grad(), _noting(self.names):
                _CALLS[func](*args, **(kwargs or {}))
        return made


@contextmanager
def _noting(names: set[str]) -> Iterator[None]:
    """Have a call name its kernel in place of loading it. What we do not serve is left to who falls back."""

    def found(_: Any, chosen: SlicedKernel, *__: Any) -> Any:
        names.add(chosen.name)
        raise _Found

    loads, patched = prepare._load, vars(prepare)
    patched["_load"] = found
    try:
        with suppress(_Found, gemmill.GemmillError):
            yield
    finally:
        patched["_load"] = loads


@contextmanager
def without_launches(device: str, names: set[str]) -> Iterator[None]:
    """Have our operators, and the calls in code of Inductor, note their kernels and launch nothing: what they return is
    not initialised."""

    def noted(name: str, mutates: bool) -> Callable[..., Any]:
        row = OPERATORS[name]
        launch = row.launch(AT_KERNEL)

        def instead(**given: Any) -> Any:
            with _noting(names):
                launch(**given)
            given.pop("out", None)
            if mutates:
                return None
            made = [x.empty(given["a"]) for x in row.outputs(**given)]
            return made if row.several else made[0]

        return _adapted(_positional(row.arguments_out if mutates else row.arguments), instead)

    def called(function: str) -> Callable[..., Any]:
        launch = getattr(AT_KERNEL, function)

        def instead(*given: Any, out: Any, **keywords: Any) -> Any:
            with _noting(names):
                launch(*given, out=out, **keywords)
            return out

        return instead

    library = torch.library.Library("gemmill", "IMPL")
    public = {name: getattr(gemmill, name) for name in AT_KERNEL._fields}
    try:
        for name in public:
            setattr(gemmill, name, called(name))
        for name in OPERATORS:  # which launch at Autograd already; what is compiled records nothing there
            for key in (device.upper(), f"Autograd{device.upper()}"):
                library.impl(name, noted(name, False), key, allow_override=True)
                library.impl(f"{name}_out", noted(name, True), key, allow_override=True)
        yield
    finally:
        for name, function in public.items():
            setattr(gemmill, name, function)
        library._destroy()
        if device == "cuda":
            # For fake tensors PyTorch calls what a key was last given in Python, also once that is gone.
            register_kernels(LIBRARY, "CUDA")


def warm(names: set[str]) -> None:
    """Have kernels compiled, in parallel."""
    caches.default_registry().warm(sorted(names))
