"""What launches calls of operators, within PyTorch's dispatcher: the short ways of ``matmul`` and ``grouped_matmul``.

As callers have these, they would ask what PyTorch has to do first, and come back as operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.api.warm import short_by_tensors, short_by_values
from gemmill.runtime.traced import Seen


class Launches(NamedTuple):
    """Both, at one place of the dispatcher."""

    matmul: Callable[..., Any]
    grouped_matmul: Callable[..., Any]


def _launches(seen: Seen | None) -> Launches:
    of_matmul, of_groups = inspect.unwrap(matmul), inspect.unwrap(grouped_matmul)
    return Launches(
        wraps(of_matmul)(short_by_values(of_matmul, seen)), wraps(of_groups)(short_by_tensors(of_groups, seen))
    )


def _not_yet(*_: Any, **__: Any) -> Any:
    return NotImplemented


AT_AUTOGRAD = _launches(Seen(_not_yet))
"""Where gradients are recorded: NotImplemented if this is one to be recorded, or something else is to see the call
before its kernel."""
AT_KERNEL = _launches(None)
"""Below all of that, where nothing is asked."""
