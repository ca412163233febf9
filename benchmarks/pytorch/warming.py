"""Compile the kernels of a step in parallel, before the step is timed.

A run records the kernels that it would load. In an eager step, these are the kernels of the products that PyTorch
dispatches; in a compiled step, those of gemmill's operators, which launch nothing in this run.
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
"""gemmill's calls for the operators that PyTorch dispatches."""


class _Found(Exception):
    """Raised instead of loading a kernel."""


class Needed(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Records the kernel of each product dispatched in this mode; PyTorch computes the products as usual."""

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
    """Make calls record their kernel instead of loading it. Unsupported calls are ignored, since they fall back."""

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
    """Make gemmill's operators, and its calls in Inductor's code, record their kernels without a launch. They return
    uninitialized tensors."""

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
        for name in OPERATORS:  # they launch at the Autograd key; compiled code records no graph there
            for key in (device.upper(), f"Autograd{device.upper()}"):
                library.impl(name, noted(name, False), key, allow_override=True)
                library.impl(f"{name}_out", noted(name, True), key, allow_override=True)
        yield
    finally:
        for name, function in public.items():
            setattr(gemmill, name, function)
        library._destroy()
        if device == "cuda":
            # For fake tensors, PyTorch still calls the last Python kernel of a key, so register the original again.
            register_kernels(LIBRARY, "CUDA")


def warm(names: set[str]) -> None:
    """Compile kernels in parallel."""
    caches.default_registry().warm(sorted(names))
