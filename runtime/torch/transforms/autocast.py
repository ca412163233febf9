"""The operators under ``torch.autocast``: floating-point A, B and C of 16 and 32 bits in its dtype, as ``torch.mm`` has
them. What is of 64 or 8 bits, or of integers, stays as it is, and so do scales and an expression's operands."""

from __future__ import annotations

from typing import Any

import torch

NAMES = ("mm", "addmm", "bmm", "baddbmm", "grouped_mm", "epilogue")
"""Operators of which it casts operands. Others say by scales and narrow types what they multiply; and so do those that
write to tensors of the caller."""

_CAST = frozenset((torch.float32, torch.bfloat16, torch.float16))


def register(library: torch.library.Library, name: str) -> None:
    """Register what an operator is under ``torch.autocast`` of either device."""
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
