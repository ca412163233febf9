"""The specification of a call's fast path: read the call, then launch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmill.runtime.api.prepare import launch
from gemmill.runtime.api.read import Declaration
from gemmill.runtime.operands.call import GemmCall


def read(function: Callable[..., Any], a: Any, b: Any, **arguments: Any) -> GemmCall:
    """The call of ``matmul`` or ``grouped_matmul`` with these arguments."""
    return Declaration.of(function).read({"a": a, "b": b, **arguments})


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """``matmul`` or ``grouped_matmul`` without a fast path; takes A and B by position, all else by keyword."""

    def plain(a: Any, b: Any, **arguments: Any) -> Any:
        call = read(function, a, b, **arguments)
        launch(call)
        return call.out

    return plain
