"""Choice tables: which kernel of a pack runs a problem, computed when the pack is made.

A table lists the layers of a model. A layer is a problem without one extent, such as the number of tokens, and the
kernel for each range of that extent. :mod:`gemmill.runtime.select.table_making` makes tables, and
:mod:`gemmill.runtime.select.table_chooser` chooses by them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, get_args

from gemmill.library.bits import fault_of
from gemmill.library.config.edited import is_edited
from gemmill.library.decompositions.decomposition import MAX_SLICES
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.input.strict_json import RowError, read_row
from gemmill.library.problem import MAX_EXTENT, MAX_US, MIN_US, Regime
from gemmill.runtime.select.kernels.formats import FIELDS

ExtentName = Literal["m", "n", "k"]
"""The extent that a layer leaves out."""
EXTENTS: tuple[ExtentName, ...] = get_args(ExtentName)
"""In the order in which they are looked up."""
ALL_EXTENTS = (*EXTENTS, "batch")
"""The extents of a problem."""


class Formats(NamedTuple):
    """Formats of problems."""

    word: str
    """The values of the fields that :data:`~gemmill.runtime.select.kernels.formats.FIELDS` lists, joined by spaces; a
    field without a value gives ``none``."""
    multiples: tuple[int, ...]
    """What M, N and K of a problem must be multiples of."""


class TableKernel(NamedTuple):
    """A kernel as a table names it."""

    name: str
    """Kernel name."""
    slices: int
    """Slices of K of its launch."""
    swap_ab: bool
    """Whether it runs the transposed problem."""
    aligns: tuple[int, ...]
    """Least alignments of A, B, C and D of the problem, in bytes."""

    def __str__(self) -> str:
        return f"{SlicedKernel(self.name, self.slices)}{', transposed' if self.swap_ab else ''}"


class Layer(NamedTuple):
    """A problem without one extent, and the kernel for each range of that extent."""

    formats: int
    """Index of its formats."""
    extent: ExtentName
    """The extent that is left out, which is 0 here. With masked groups, its values are those of the rows (columns) that
    are expected to be in use."""
    m: int
    n: int
    k: int
    batch: int
    aligns: tuple[int, ...]
    """Alignments of A, B, C and D, in bytes."""
    largest: int
    """The largest extent for which kernels were compared."""
    first: tuple[int, ...]
    """The first extent of each range, ascending from 1. The last range has no end."""
    kernel: tuple[int, ...]
    """The index of the kernel for each range."""
    us: tuple[float, ...]
    """Predicted microseconds near the first extent of each range."""

    @property
    def extents(self) -> tuple[int, ...]:
        """M, N, K and the batch."""
        return self.m, self.n, self.k, self.batch

    def range_of(self, extent: int) -> int:
        """Return the index of the range that an extent is in."""
        return bisect_right(self.first, extent) - 1

    def predicted_us(self, extent: int) -> float:
        """Return the microseconds at an extent: those of its range, and beyond :attr:`largest` more in proportion."""
        return self.us[self.range_of(extent)] * max(extent / self.largest, 1)

    def range_in_words(self, i: int) -> str:
        """Return a range, such as ``M from 17 to 32``."""
        end = f" to {self.first[i + 1] - 1}" if i + 1 < len(self.first) else ""
        return f"{self.extent.upper()} from {self.first[i]}{end}"

    def __str__(self) -> str:
        m, n, k = (name.upper() if name == self.extent else getattr(self, name) for name in EXTENTS)
        return f"{m}x{n}x{k}" + (f"x{self.batch}" if self.batch != 1 else "")


class ChoiceTable(NamedTuple):
    """The kernels of a pack for the layers of a model."""

    gpu: str
    """Name of the GPU that it was made for."""
    objective: Regime
    bits: str
    """The value of ``bits=`` that its kernels satisfy."""
    formats: tuple[Formats, ...]
    kernels: tuple[TableKernel, ...]
    layers: tuple[Layer, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON that :meth:`read` reads."""
        of_rows = {name: [row._asdict() for row in getattr(self, name)] for name in ("formats", "kernels", "layers")}
        return self._asdict() | of_rows

    @classmethod
    def read(cls, place: str, value: Any, members: Collection[str]) -> ChoiceTable:
        """Return a table from JSON.

        Args:
            place: where it is, for errors.
            value: the JSON value.
            members: names of the kernels of the pack.

        Raises:
            RowError: names the first value that is invalid.
        """
        table = read_row(place, value, cls)
        if fault := fault_of(table.bits):
            raise RowError(f"{place}.{fault}")
        for i, formats in enumerate(table.formats):
            _check_formats(f"{place}.formats[{i}]", formats)
        for i, kernel in enumerate(table.kernels):
            _check_kernel(f"{place}.kernels[{i}]", kernel, members)
        keys: dict[object, int] = {}
        for i, layer in enumerate(table.layers):
            _check_layer(f"{place}.layers[{i}]", layer, len(table.formats), len(table.kernels))
            if (j := keys.setdefault((layer.formats, layer.extent, layer.extents, layer.aligns), i)) != i:
                raise RowError(f"{place}.layers[{i}] has the problem of layers[{j}]")
        return table


def _check_formats(place: str, formats: Formats) -> None:
    if len(formats.word.split(" ")) < len(FIELDS):
        raise RowError(f"{place}.word is {formats.word!r:.200}; it must have {len(FIELDS)} words")
    _check_numbers(f"{place}.multiples", formats.multiples, 3, 1, MAX_EXTENT)


def _check_kernel(place: str, kernel: TableKernel, members: Collection[str]) -> None:
    if kernel.name not in members:
        raise RowError(f"{place}.name is {kernel.name!r:.200}, which is not in the pack")
    if is_edited(kernel.name):
        raise RowError(f"{place}.name is {kernel.name!r:.200}, an edited kernel, which the selector never picks")
    if not 1 <= kernel.slices <= MAX_SLICES:
        raise RowError(f"{place}.slices is {kernel.slices}; it must be from 1 to {MAX_SLICES}")
    _check_numbers(f"{place}.aligns", kernel.aligns, 4, 0, 16)


def _check_layer(place: str, layer: Layer, formats: int, kernels: int) -> None:
    if layer.formats >= formats:
        raise RowError(f"{place}.formats is {layer.formats}; there are {formats}")
    for name, extent in zip(ALL_EXTENTS, layer.extents, strict=True):
        least, most = (0, 0) if name == layer.extent else (1, MAX_EXTENT)
        if not least <= extent <= most:
            raise RowError(f"{place}.{name} is {extent}; it must be {f'from 1 to {most:,}' if most else 0}")
    _check_numbers(f"{place}.aligns", layer.aligns, 4, 1, 16)
    if not layer.first or len(layer.kernel) != len(layer.first) or len(layer.us) != len(layer.first):
        counts = len(layer.first), len(layer.kernel), len(layer.us)
        raise RowError(f"{place} has {counts} items of first, kernel and us; it must have one of each for each range")
    if layer.first[0] != 1 or any(a >= b for a, b in zip(layer.first, layer.first[1:], strict=False)):
        raise RowError(f"{place}.first must ascend from 1")
    if not layer.first[-1] <= layer.largest <= MAX_EXTENT:
        raise RowError(f"{place}.largest is {layer.largest}; it must be from {layer.first[-1]} to {MAX_EXTENT:,}")
    if (most := max(layer.kernel)) >= kernels:
        raise RowError(f"{place}.kernel has {most}; there are {kernels} kernels")
    if not all(MIN_US <= us <= MAX_US for us in layer.us):
        raise RowError(f"{place}.us must be from {MIN_US:g} to {MAX_US:g}")


def _check_numbers(place: str, numbers: Sequence[int], count: int, least: int, most: int) -> None:
    if len(numbers) != count or not all(least <= number <= most for number in numbers):
        raise RowError(f"{place} is {[*numbers]!r:.80}; it must be {count} numbers from {least} to {most:,}")
