"""Makes the choice table of a pack: selects among its kernels for each layer of its problems and each number of
rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gemmill.library.config.batchings import GROUPED_EXTENT, MASKED
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.e2m1 import MX_BLOCK
from gemmill.library.epilogues.parse import parse
from gemmill.library.epilogues.tree import fault_of_m, fault_of_n
from gemmill.library.legality.aligns import least_aligns
from gemmill.library.problem import GemmProblem, Regime
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.choice_table import ChoiceTable, ExtentName, Formats, Layer, TableKernel
from gemmill.runtime.select.table_chooser import value_of, word_of

GRID = (
    *(1, 2, 4),
    *range(8, 513, 8),
    *range(528, 1025, 16),
    *range(1088, 4097, 64),
    *range(4352, 16385, 256),
    *range(17408, 65537, 1024),
    *range(69632, 262145, 4096),
)
"""The extents for which kernels are compared, besides those of the problems. Extents between two of them get the kernel
of the larger one: tiles are multiples of 8, so both have as many, or nearly."""
LARGEST = 16384
"""Kernels are compared up to this extent, or up to the largest of the problems."""
RATIO = 1.1
"""A range ends where another kernel is faster, or where the time has changed by this factor."""
_MOST_MULTIPLE = 1024
"""Largest number that an epilogue requires an extent to be a multiple of."""


def varying_extent(problem: GemmProblem) -> ExtentName:
    """Return the extent of a problem that varies while its weights stay: that of groups, K of a weight gradient, whose
    operands are contiguous along M and N, or else M. It is an extent of :attr:`GemmProblem.with_narrow_a`, where the
    rows of a transposed problem are columns."""
    narrow = problem.with_narrow_a
    if problem.batching in GROUPED_EXTENT:
        return GROUPED_EXTENT[narrow.batching]
    if problem.a_major == problem.b_major == "mn":
        return "k"
    return "m" if narrow is problem else "n"


def table_of(
    problems: Iterable[GemmProblem],
    select: Callable[[GemmProblem], Choice],
    gpu: str,
    objective: Regime,
    bits: str,
) -> ChoiceTable:
    """Return the choice table for the layers of problems.

    Args:
        problems: the problems.
        select: selects among the kernels of the pack, with the objective and the bits.
        gpu: name of the GPU that it selects for.
        objective: the objective.
        bits: the bits.

    Raises:
        UnsupportedProblemError: no kernel supports a problem.
    """
    formats: dict[Formats, int] = {}
    kernels: dict[TableKernel, int] = {}
    layers = []
    for (problem, extent), values in _layers(problems).items():
        row, largest = Formats(word_of(problem), _multiples(problem)), max(LARGEST, *values)
        compared = _compared(problem, extent, values, largest)
        first, indices, us = list[int](), list[int](), list[float]()
        for before, value in zip([0, *compared], compared, strict=False):
            choice = select(_at(problem, extent, value))
            index = kernels.setdefault(_kernel(choice), len(kernels))
            if not indices or indices[-1] != index or not 1 / RATIO < choice.predicted_us / us[-1] < RATIO:
                first.append(before + 1)
                indices.append(index)
                us.append(round(choice.predicted_us, 2))
        layers.append(
            Layer(
                formats=formats.setdefault(row, len(formats)),
                extent=extent,
                **{name: 0 if name == extent else getattr(problem, name) for name in ("m", "n", "k", "batch")},
                aligns=(problem.a_align, problem.b_align, problem.c_align, problem.d_align),
                largest=largest,
                first=tuple(first),
                kernel=tuple(indices),
                us=tuple(us),
            )
        )
    return ChoiceTable(gpu, objective, bits, tuple(formats), tuple(kernels), tuple(layers))


def between(problems: Iterable[GemmProblem]) -> dict[GemmProblem, int]:
    """Return the problems of the same layers whose kernels a table compares, from the smallest to the largest of the
    problems, without these, each with the value of the extent that varies."""
    return {
        _at(problem, extent, value): value
        for (problem, extent), values in _layers(problems).items()
        for value in _compared(problem, extent, values, max(values))
        if value > min(values) and value not in values
    }


def _compared(problem: GemmProblem, extent: ExtentName, values: Iterable[int], largest: int) -> list[int]:
    """Return the values of the extent of a layer, up to the largest, for which kernels are compared."""
    multiple = _multiples(problem)["mnk".index(extent)]
    return [x for x in sorted({*GRID, *values}) if x <= largest and x % multiple == 0]


def _layers(problems: Iterable[GemmProblem]) -> dict[tuple[GemmProblem, ExtentName], list[int]]:
    """Return the layers of problems, each as one of its problems and the extent that varies, with the values of that
    extent that the problems have."""
    layers: dict[object, tuple[GemmProblem, ExtentName, list[int]]] = {}
    for problem in problems:
        narrow, extent = problem.with_narrow_a, varying_extent(problem)
        key = narrow.but(**{extent: 0}, expected_rows=None), extent
        layers.setdefault(key, (narrow, extent, []))[-1].append(value_of(narrow, extent))
    return {(narrow, extent): values for narrow, extent, values in layers.values()}


def _at(problem: GemmProblem, extent: ExtentName, value: int) -> GemmProblem:
    """Return a problem with another value of its extent; of masked groups the rows that are expected to be in use."""
    if problem.batching in MASKED:
        return problem.but(**{extent: max(value, getattr(problem, extent))}, expected_rows=value)
    return problem.but(**{extent: value})


def _kernel(choice: Choice) -> TableKernel:
    a, b, c, d = least_aligns(choice.config)
    aligns = (b, a, c, d) if choice.swap_ab else (a, b, c, d)
    return TableKernel(choice.name, choice.slices, choice.swap_ab, aligns)


def _multiples(problem: GemmProblem) -> tuple[int, int, int]:
    """Return what M, N and K of problems with some formats must be multiples of."""
    epilogue, numbers = parse(problem.epilogue), range(1, _MOST_MULTIPLE + 1)
    has_blocks = (problem.a_scale, problem.b_scale) in BLOCK_SCALES.values()
    m = next(number for number in numbers if not fault_of_m(epilogue, number))
    n = next(number for number in numbers if not fault_of_n(epilogue, number, has_blocks))
    return m, n, MX_BLOCK if "e2m1" in (problem.a_dtype, problem.b_dtype) else 1
