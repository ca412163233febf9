"""What a kernel family says of itself to be drawn, and the words that families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.library.anatomy.memory import CHUNK, Region
from gemmill.library.config.fields import Fields
from gemmill.library.launch import LaunchSpec
from gemmill.library.layouts.atoms import MmaAtom
from gemmill.library.layouts.layout import Layout
from gemmill.library.legality.quantities import integer

LOAD, MULTIPLY, STORE, WAIT = 0, 2, 1, 7
"""Colours of what is done."""


class Step(NamedTuple):
    """What somebody does from a time to another; times are an order, of no unit, up to 10."""

    start: float
    end: float
    words: str
    shade: int


@dataclass(frozen=True)
class Lane:
    """Somebody, and what they do one after the other."""

    name: str
    steps: Sequence[Step]


@dataclass(frozen=True)
class Staging:
    """The subtiles in which a warpgroup stages D on its way to TMA."""

    writers: int
    """Warpgroups that do."""
    down: int
    """Subtiles along M, of 64 rows."""
    columns: int
    """Columns of D of a warpgroup."""
    subtile_n: int
    buffers: int
    """Subtiles that there is room for."""


@dataclass(frozen=True)
class Anatomy:
    """How the kernels of a family work."""

    accumulators: Callable[[Fields], Layout]
    """(thread, value) -> m + n tile M of the sums of a tile: threads are those that multiply, from 0."""
    instruction: Callable[[Fields], MmaAtom | None]
    """The MMA that kernels are made of, by CUTLASS's name; None where operands are held otherwise."""
    regions: Callable[[Fields, LaunchSpec, tuple[int, int]], list[Region]]
    """The parts of shared memory, in order, from bytes of a stage of A and of B: all of what the launch asks for."""
    span: Callable[[Fields, str], int]
    """Bytes of the rows in which a stage of operand a or b is swizzled; 16 where it is not."""
    lanes: Callable[[Fields], list[Lane]]
    """Who does what, one after the other."""
    threads: str
    """What threads of the accumulators are counted."""
    operands: str
    """How A and B reach the threads, where :attr:`instruction` does not say it."""
    unswizzled: str
    """Why no stage is swizzled, where none is."""
    staging: Callable[[Fields], Staging | None] = lambda _: None
    """How D is staged; None where threads store it from their registers."""


Modes = tuple[tuple[int, int], ...]
"""Extents and strides, those of extent 1 left out when they become a layout."""


def thread_values(threads: Modes, values: Modes) -> Layout:
    """A layout (thread, value)."""

    def mode(of: Modes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        kept = [each for each in of if each[0] > 1] or [(1, 0)]
        return tuple(extent for extent, _ in kept), tuple(stride for _, stride in kept)

    (t, dt), (v, dv) = mode(threads), mode(values)
    return Layout((t, v), (dt, dv))


def stage_regions(fields: Fields, launch: LaunchSpec, stages: tuple[int, int]) -> list[Region]:
    """The stages of A and of B."""
    depth = integer(fields, "stages")
    return [Region(f"{operand} stages", depth, size) for operand, size in zip("AB", stages, strict=True)]


def no_span(fields: Fields, operand: str) -> int:
    """Of stages that are not swizzled."""
    return CHUNK


def no_instruction(fields: Fields) -> MmaAtom | None:
    """Of kernels whose operands are not held as CUTLASS has them."""
    return None


def pipeline(copies: str, multiplies: str, stages: int) -> list[Lane]:
    """Warps that all copy, stages ahead, and multiply."""
    fills = [Step(2.0 * step, 2.0 * step + 2, f"{copies}: s{step % stages}", LOAD) for step in range(4)]
    used = [
        Step(2.0 * step, 2.0 * step + 2, f"{multiplies} of s{(step - 1) % stages}", MULTIPLY) for step in range(1, 4)
    ]
    first, last = Step(0.0, 2.0, "wait", WAIT), Step(8.0, 10.0, "D", STORE)
    return [Lane("every warp: copies", fills), Lane("every warp: multiplies", [first, *used, last])]
