"""What launches calls of operators, within PyTorch's dispatcher: the short ways of ``matmul`` and ``grouped_matmul``.

As callers have these, they would ask what PyTorch has to do first, and come back as operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from gemmill.runtime.api.fast_path import grouped_path, matmul_path
from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.api.read import Declaration
from gemmill.runtime.torch_dispatch import Dispatch


class Launches(NamedTuple):
    """Both, at one place of the dispatcher."""

    matmul: Callable[..., Any]
    grouped_matmul: Callable[..., Any]


def _launches(dispatch: Dispatch | None) -> Launches:
    return Launches(
        wraps(matmul)(matmul_path(Declaration.of(matmul), dispatch)),
        wraps(grouped_matmul)(grouped_path(Declaration.of(grouped_matmul), dispatch)),
    )


def _not_yet(*_: Any, **__: Any) -> Any:
    return NotImplemented


AT_AUTOGRAD = _launches(Dispatch(_not_yet))
"""Where gradients are recorded: NotImplemented if this is one to be recorded, or something else is to see the call
before its kernel."""
AT_KERNEL = _launches(None)
"""Below all of that, where nothing is to be seen first."""
