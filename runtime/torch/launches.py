"""Launches calls of operators from within PyTorch's dispatcher, by the fast paths of ``matmul`` and ``grouped_matmul``.

The public functions are not suitable: they first check whether PyTorch must see a call, and would call the operators
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.api.fast_path import grouped_path, matmul_path
from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.api.prepare import check
from gemmill.runtime.api.read import Declaration
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.tensors import TABLES, view_anywhere
from gemmill.runtime.torch.outputs import of_epilogue
from gemmill.runtime.torch_dispatch import Dispatch


class Launches(NamedTuple):
    """The two functions, for one place in the dispatcher."""

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
"""For the Autograd key. They return NotImplemented if a gradient must be recorded, or anything else in PyTorch must see
the call before its kernel."""
AT_KERNEL = _launches(None)
"""For the CUDA key, below everything that could intervene."""


def _bound(declaration: Declaration) -> Callable[..., Any]:
    """A function that checks the options of a call, whose ``out`` is passed, and binds views of its tensors, but
    launches nothing."""

    def bind(a: torch.Tensor, b: torch.Tensor, **arguments: Any) -> Any:
        views = {
            name: view_anywhere(x.int() if name in TABLES and x.dtype == torch.int64 else x, name)
            if isinstance(x, torch.Tensor)
            else x
            for name, x in {"a": a, "b": b, **arguments}.items()
        }
        call = declaration.read({**views, "stream": 0})
        check(call)
        call.bound  # noqa: B018 - it raises an error for what does not fit
        return arguments["out"]

    return bind


AS_ON_GPU = Launches(_bound(Declaration.of(matmul)), _bound(Declaration.of(grouped_matmul)))
"""For tensors on any device. They raise the errors that the same call raises on a GPU before it selects a kernel."""


def named_operands(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of a mapping ``named`` to take the lists ``operands``, ``numbers`` and ``names`` instead."""

    def launch_with_names(
        operands: Sequence[torch.Tensor], names: Sequence[str], numbers: Sequence[float] = (), **others: Any
    ) -> Any:
        values = (*operands, *numbers)
        if len(values) != len(names):
            raise OperandError(
                f"epilogue: there are {len(operands)} operands and {len(numbers)} numbers, but {len(names)} names: "
                "pass a name for each operand, then for each number"
            )
        return function(named=dict(zip(names, values, strict=True)), **others)

    return launch_with_names


def launch_epilogue(
    launches: Launches,
    expression: str,
    a: torch.Tensor,
    b: torch.Tensor,
    named: dict[str, Any],
    out: list[torch.Tensor] | None = None,
    **others: Any,
) -> list[torch.Tensor]:
    """Launch an epilogue. Returns D and the further outputs, which are those in ``out`` if given, or NotImplemented if
    ``launches`` returns it."""
    further = [x.name for x in read_epilogue(expression).outputs]
    if out is None and further:
        shapes = of_epilogue(expression, a, b, named, **others)
        further_tensors = [x.empty(a) for x in shapes[1:]]
    else:
        further_tensors = out[1:] if out else []
    written = dict(zip(further, further_tensors, strict=True))
    multiply = launches.grouped_matmul if named.keys() & {"offsets", "counts"} else launches.matmul
    d = multiply(a, b, out=out[0] if out else None, epilogue=expression, **named, **written, **others)
    return NotImplemented if d is NotImplemented else [d, *further_tensors]
