"""Launches a nested batch that no kernel supports in parts: one launch for each part with one stride, in sequence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from operator import add
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import OperandError
from gemmill.runtime.launch.launcher import Launcher
from gemmill.runtime.operands.call_keywords import OPERANDS, PLACES
from gemmill.runtime.operands.gemm import Addresses, Gemm
from gemmill.runtime.operands.matrices import Operand


class PartLaunches:
    """Launches of one kernel on the parts of a batch.

    ``arguments`` are those of a :class:`Launcher`. ``shifts`` are the byte offsets of each part's addresses from those
    of the first. ``memory`` refuses invalid addresses.
    """

    def __init__(self, *arguments: Any, shifts: Sequence[Addresses], memory: Callable[[Addresses], None]) -> None:
        self.each = Launcher(*arguments, memory=_checked_before)
        """The launcher of a part."""
        self._shifts, self._memory = shifts, memory

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream, on operands at some addresses."""
        self._memory(addresses)
        for shift in self._shifts:
            self.each.launch(stream, tuple(map(add, addresses, shift)))


def parts_of(gemm: Gemm) -> tuple[Gemm, tuple[Addresses, ...]]:
    """Return the first part of a nested batch, along its longest extent, and the byte offsets of each part's addresses
    from those of the first.

    Raises:
        OperandError: the epilogue has outputs that each launch would reset.
    """
    nested = gemm.nested
    if reset := [argument.name for argument in gemm.arguments if argument.reset]:
        raise OperandError(
            f"{' and '.join(reset)}: no kernel here reduces over a batch with {len(nested)} strides: make the "
            "operands contiguous, or loop over the outer extents"
        )
    along = max(range(len(nested)), key=nested.__getitem__)
    weights = [prod(nested[i + 1 :]) for i in range(len(nested))]
    steps: dict[int, list[int]] = {}
    changed: dict[str, Any] = {}
    for name, operand in gemm.operands.items():
        strides = [operand.batch_stride * step for step in getattr(operand, "batch_steps", ()) or weights]
        if isinstance(operand, Operand):
            changed[name] = operand._replace(batch_stride=strides[along], batch_steps=())
        else:
            changed[name] = operand._replace(batch_stride=strides[along])
        steps[PLACES[operand.name]] = [stride * DTYPES[operand.dtype].bits // 8 for stride in strides]
    arguments = []
    for place, argument in enumerate(gemm.arguments, len(OPERANDS)):
        if argument.strides:
            *inside, outer = argument.strides
            argument = argument._replace(strides=(*inside, outer * weights[along]))
            steps[place] = [outer * weight * argument.element_bytes for weight in weights]
        arguments.append(argument)
    indices = itertools.product(*(range(1 if i == along else extent) for i, extent in enumerate(nested)))
    unmoved = (0,) * len(nested)
    shifts = tuple(
        tuple(
            sum(i * step for i, step in zip(index, steps.get(place, unmoved), strict=True))
            for place in range(len(OPERANDS) + len(arguments))
        )
        for index in indices
    )
    problem = gemm.problem.but(batching="strided", batch=nested[along])
    return gemm._replace(problem=problem, nested=(), arguments=tuple(arguments), **changed), shifts


def _checked_before(_: Addresses) -> None:
    """A part's addresses need no check, since :class:`PartLaunches` checks those of the call."""
