"""Calls that PyTorch traces, rather than runs, go to its operators (runtime/torch/), which no launcher sees.

Nothing here costs an eager call anything. Dynamo traces another function in place of the public one, which bears it as
an attribute, as PyTorch's own wrappers do. Modes that watch what is dispatched, such as those of fake tensors, of
``make_fx`` and of export, are asked after where no warm call was recognised, and none is by tensors that are fake,
functional or meta. A real tensor under such a mode may be recognised: its call is launched, and the mode sees nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def _matmul(*arguments: Any, **keywords: Any) -> Any:
    from gemmill.runtime.torch.calls import matmul  # a statement: Dynamo traces no import_module

    return matmul(*arguments, **keywords)


def _grouped_matmul(*arguments: Any, **keywords: Any) -> Any:
    from gemmill.runtime.torch.calls import grouped_matmul

    return grouped_matmul(*arguments, **keywords)


TRACED: Mapping[str, Callable[..., Any]] = MappingProxyType({"matmul": _matmul, "grouped_matmul": _grouped_matmul})
"""What makes of a call of a public function one of an operator. PyTorch is imported when it does."""


def trace_instead(function: Callable[..., Any], traced: Callable[..., Any]) -> None:
    """Have Dynamo trace another function where a program calls this one."""
    function._torchdynamo_inline = traced  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Whether a mode of PyTorch is to see what is dispatched here."""
    torch = sys.modules.get("torch")
    if torch is None or not torch._C._len_torch_dispatch_stack():
        return False
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)  # which none sees then
