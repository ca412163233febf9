"""A nested batch where no kernel takes one: a launch for each part of it that has one stride, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import add
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import OperandError
from gemmill.runtime.launch.launcher import Launcher
from gemmill.runtime.operands.binding import OPERANDS, PLACES, Addresses, Gemm
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import BoundArgument
from gemmill.runtime.operands.matrices import Operand
from gemmill.runtime.operands.tensors import TensorView


class PartLaunches:
    """Launches of one kernel on parts of a batch. ``memory`` refuses addresses that no call may have."""

    def __init__(self, each: Launcher, shifts: Sequence[Addresses], memory: Callable[[Addresses], None]) -> None:
        self.each = each
        """The launcher of a part."""
        self._shifts, self._memory = shifts, memory

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream, on operands at some addresses."""
        self._memory(addresses)
        for shift in self._shifts:
            self.each.launch(stream, tuple(map(add, addresses, shift)))


class BatchParts(NamedTuple):
    """The parts of a nested batch."""

    gemm: Gemm
    """The first."""
    arguments: tuple[BoundArgument, ...]
    """What is passed to its epilogue."""
    shifts: tuple[Addresses, ...]
    """How many bytes each part's addresses lie from those of the first."""


def launch_parts(
    call: GemmCall, gemm: Gemm, arguments: Sequence[BoundArgument], memory: Callable[[Addresses], None]
) -> tuple[BatchParts, Callable[..., PartLaunches]]:
    """The parts of a call's nested batch, and what makes their launches of a launcher's arguments.

    OperandError where an epilogue has outputs that each launch would set anew.
    """
    if reset := [argument.name for argument in arguments if argument.reset]:
        raise OperandError(
            f"{' and '.join(reset)}: no kernel here reduces over a batch of {len(gemm.nested)} strides; make the "
            "operands contiguous, or loop over the outer extents"
        )
    sizes = {name: DTYPES[x.dtype].bytes for name, x in call.arguments.values.items() if isinstance(x, TensorView)}
    parts = parts_of(gemm, arguments, sizes)

    def new(*arguments: Any) -> PartLaunches:
        return PartLaunches(Launcher(*arguments, memory=_checked_before), parts.shifts, memory)

    return parts, new


def parts_of(gemm: Gemm, arguments: Sequence[BoundArgument], sizes: Mapping[str, int]) -> BatchParts:
    """The parts of a nested batch, along the longest of its extents; ``sizes`` are bytes of elements of the arguments,
    by name."""
    nested = gemm.nested
    along = max(range(len(nested)), key=nested.__getitem__)
    weights = [prod(nested[i + 1 :]) for i in range(len(nested))]
    strides: dict[int, list[int]] = {}
    changed: dict[str, Any] = {}
    for name in ("a", "b", "c", "d", "scale", "zero", "a_scale", "b_scale"):
        operand = getattr(gemm, name)
        if operand is None:
            continue
        steps = getattr(operand, "batch_steps", ()) or weights
        own = [operand.batch_stride * step for step in steps]
        if isinstance(operand, Operand):
            changed[name] = replace(operand, batch_stride=own[along], batch_steps=())
        else:
            changed[name] = operand._replace(batch_stride=own[along])
        strides[PLACES[gemm.name(name)]] = [stride * DTYPES[operand.dtype].bits // 8 for stride in own]
    bound = []
    for place, argument in enumerate(arguments, len(OPERANDS)):
        if argument.strides:
            *inside, outer = argument.strides
            bound.append(argument._replace(strides=(*inside, outer * weights[along])))
            strides[place] = [outer * weight * sizes[argument.name] for weight in weights]
        else:
            bound.append(argument)
    indices = itertools.product(*(range(1 if i == along else extent) for i, extent in enumerate(nested)))
    places = len(OPERANDS) + len(arguments)
    unmoved = (0,) * len(nested)
    shifts = (
        tuple(
            sum(i * step for i, step in zip(index, strides.get(place, unmoved), strict=True)) for place in range(places)
        )
        for index in indices
    )
    problem = gemm.problem.but(batching="strided", batch=nested[along])
    return BatchParts(replace(gemm, problem=problem, nested=(), **changed), tuple(bound), tuple(shifts))


def _checked_before(_: Addresses) -> None:
    """The addresses of a part are not those of its tensors."""
