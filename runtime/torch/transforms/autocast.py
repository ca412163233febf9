"""The operators under ``torch.autocast``: A, B and C of 16 or 32 floating-point bits are cast to autocast's dtype.

``torch.mm`` does the same. Scales, operands of an expression, and calls with float64, 8-bit or integer operands are not
cast.
"""

from __future__ import annotations

from typing import Any

import torch

NAMES = ("mm", "addmm", "bmm", "baddbmm", "grouped_mm", "epilogue")
"""Operators whose operands autocast casts. For the others, scales and narrow dtypes fix the dtypes of the operands.
Autocast also leaves the mutating operators alone."""

_CAST = frozenset((torch.float32, torch.bfloat16, torch.float16))


def register(library: torch.library.Library, name: str) -> None:
    """Register an operator's kernels for ``torch.autocast`` on CUDA and CPU."""
    operator = getattr(torch.ops.gemmill, name).default
    names = [x.name for x in operator._schema.arguments if not x.kwarg_only]
    for device in ("cuda", "cpu"):
        _register_for(library, name, operator, names, device)


def _register_for(library: torch.library.Library, name: str, operator: Any, names: list[str], device: str) -> None:
    key = f"Autocast{device.upper()}"
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*positional: Any, **keywords: Any) -> Any:
        arguments = dict(zip(names, positional, strict=False))
        if arguments["a"].dtype in _CAST and arguments["b"].dtype in _CAST:
            dtype = torch.get_autocast_dtype(device)
            for name_of_tensor in ("a", "b", "c"):
                if arguments.get(name_of_tensor) is not None:
                    arguments[name_of_tensor] = arguments[name_of_tensor].to(dtype)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*arguments.values(), **keywords)

    library.impl(name, kernel, key)
