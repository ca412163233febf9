"""The operator ``epilogue``: its lists as the keywords of ``matmul`` or ``grouped_matmul``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.launches import Launches
from gemmill.runtime.torch.outputs import of_epilogue


def named_operands(function: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the lists ``operands``, ``numbers`` and ``names`` in place of a mapping ``named``."""

    def called(
        operands: Sequence[torch.Tensor], names: Sequence[str], numbers: Sequence[float] = (), **others: Any
    ) -> Any:
        values = (*operands, *numbers)
        if len(values) != len(names):
            raise OperandError(
                f"epilogue: {len(operands)} operands and {len(numbers)} numbers have {len(names)} names; they must be "
                "as many"
            )
        return function(named=dict(zip(names, values, strict=True)), **others)

    return called


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
