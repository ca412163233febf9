"""What launches calls of operators, within PyTorch's dispatcher: the short ways of ``matmul`` and ``grouped_matmul``.

As callers have these, they would ask what PyTorch has to do first, and come back as operators.
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
from gemmill.runtime.api.read import Declaration
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.outputs import of_epilogue
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


def named_operands(function: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the lists ``operands``, ``numbers`` and ``names`` in place of a mapping ``named``."""

    def launch_with_names(
        operands: Sequence[torch.Tensor], names: Sequence[str], numbers: Sequence[float] = (), **others: Any
    ) -> Any:
        values = (*operands, *numbers)
        if len(values) != len(names):
            raise OperandError(
                f"epilogue: {len(operands)} operands and {len(numbers)} numbers have {len(names)} names; they must be "
                "as many"
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
    """D and what the expression writes beside it; ``out`` are these, to be written to. NotImplemented as ``launches``
    give it."""
    beside = [x.name for x in read_epilogue(expression).outputs]
    if out is None and beside:
        shapes = of_epilogue(expression, a, b, named, **others)
        made = [x.empty(a) for x in shapes[1:]]
    else:
        made = out[1:] if out else []
    written = dict(zip(beside, made, strict=True))
    multiply = launches.grouped_matmul if named.keys() & {"offsets", "counts"} else launches.matmul
    d = multiply(a, b, out=out[0] if out else None, epilogue=expression, **named, **written, **others)
    return NotImplemented if d is NotImplemented else [d, *made]
