"""Calls step by step: read, launched without a fast path, or made of views and bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.tree import Epilogue
from gemmill.runtime.api.prepare import launch
from gemmill.runtime.api.read import Declaration
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import Options
from gemmill.runtime.operands.epilogue_arguments import NO_ARGUMENTS, EpilogueArguments
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.operands.tensors import TensorView


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


def call_of(
    a: TensorView,
    b: TensorView,
    d: TensorView,
    c: TensorView | None = None,
    accumulator: DTypeName = "f32",
    *,
    tf32: bool = False,
    precision: str = "ieee",
    bits: str = "any",
    symmetric: bool = False,
    epilogue: Epilogue | None = None,
    **others: TensorView | None,
) -> GemmCall:
    """A call on these tensors; ``others`` are scales, zero points, offsets, counts or addresses."""
    tensors = {"a": a, "b": b, "c": c, **others, "out": d}
    arguments = NO_ARGUMENTS if epilogue is None else EpilogueArguments(epilogue, {}, str(epilogue))
    given = {name: x for name, x in tensors.items() if x is not None}
    options = Options(accumulator=accumulator, tf32=tf32, precision=precision, bits=bits, symmetric=symmetric)
    return GemmCall(given, options, arguments)


def bound(a: TensorView, b: TensorView, d: TensorView, c: TensorView | None = None, **others: Any) -> Gemm:
    """The GEMM of :func:`call_of`."""
    return call_of(a, b, d, c, **others).bound
