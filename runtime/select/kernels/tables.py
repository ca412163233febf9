"""The kernels of a set as tables of candidates: those that may support a problem, by its formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import Gpu, serving
from gemmill.library.bits import kernels_of
from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.epilogues.parse import parse
from gemmill.library.epilogues.tree import fault_of_m, fault_of_n
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import MAX_EXTENT, GemmProblem, is_mixed
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.network import Network
from gemmill.runtime.select.cost.table import Entry, FeatureTable
from gemmill.runtime.select.kernels.faults import is_aligned, refusal
from gemmill.runtime.select.kernels.formats import (
    Format,
    check_formats,
    format_of_problem,
    serving_formats,
    with_f32_sums,
)
from gemmill.runtime.select.kernels.variations import Variants
from gemmill.runtime.select.slow_path import fewest_changes

if TYPE_CHECKING:
    from gemmill.library.arithmetic import Arithmetic

Keep = Callable[[object, Network | None, Callable[[], FeatureTable | None]], FeatureTable | None]
"""Returns the table for a key: a cached one, or the result of a function."""
Found = tuple[FeatureTable, "np.ndarray[tuple[int], np.dtype[np.int64]] | None"]
"""A table, and the indices of its kernels that support a problem; None for all."""
_Families = tuple[FamilyName, ...]
_ALL: _Families = tuple(FAMILIES)
_NAMED = 6
"""Most arithmetics that an error names."""


class Kernels:
    """The kernels of a set for one GPU.

    Args:
        configs: the kernels by name.
        gpu: the GPU; kernels for other compute capabilities are left out.
        varies: whether kernels may be varied, as :class:`Variants` describes.
        network: the network that corrects the analytic model of the GPU.
        keep: caches tables in a store; None: no cache.
    """

    def __init__(
        self,
        configs: Mapping[str, GemmConfig],
        gpu: Gpu,
        varies: bool,
        network: Network | None,
        keep: Keep | None = None,
    ) -> None:
        self.configs = configs
        self._gpu, self._varies, self._network, self._keep = gpu, varies, network, keep
        self._tables: dict[tuple[Format, bool, _Families, Arithmetic | None], FeatureTable | None] = {}
        """By formats, whether they sum more precisely, families and required arithmetic."""
        self._entries: dict[tuple[Format, bool, FamilyName, Arithmetic | None], list[Entry]] = {}
        """The same for one family: making them takes milliseconds."""

    @cached_property
    def variants(self) -> Variants:
        """The kernels by their formats; parses all of them."""
        targets = serving(self._gpu.capability)
        on_gpu = {name: config for name, config in self.configs.items() if config.target in targets}
        return Variants(on_gpu, self._varies)

    def serving(self, problem: GemmProblem, sm_count: int | None, arithmetic: Arithmetic | None = None) -> Found:
        """Return a table for the formats of a problem, and which of its kernels support it. The kernels have the
        required arithmetic. Without one, they accumulate as requested or, where none does, more precisely.

        Raises:
            UnsupportedProblemError: no kernel supports it; names the constraint and the nearest kernel.
        """
        if (table_and_members := self.find(problem, sm_count, arithmetic)) is not None:
            return table_and_members
        if arithmetic is not None and (table_and_members := self.find(problem, sm_count)):
            way = self._way_out(problem, sm_count, arithmetic)
            raise _without(arithmetic, problem, sm_count, table_and_members, way)
        if sm_count is not None and (table_and_members := self.find(problem, None)):
            table, members = table_and_members
            ctas = table.columns["ctas"] if members is None else table.columns["ctas"][members]
            raise UnsupportedProblemError(
                f"no kernel supports {problem} on {sm_count} SMs: those that support it have clusters of at least "
                f"{ctas.min():.0f} CTAs, or reduce in a second kernel or copy operands first, which sm_count does "
                "not limit; raise sm_count or leave it out"
            )
        raise refusal(self.configs, problem, self._gpu)

    def find(self, problem: GemmProblem, sm_count: int | None, arithmetic: Arithmetic | None = None) -> Found | None:
        """Return the same as :meth:`serving`, or None.

        Raises:
            UnsupportedProblemError: no kernel could support it.
        """
        for value in (problem.m, problem.n, problem.k, problem.batch):
            if type(value) is not int or not 0 <= value <= MAX_EXTENT:
                _refuse_extents(problem)
        epilogue = parse(problem.epilogue)
        if fault := fault_of_n(epilogue, problem.n, (problem.a_scale, problem.b_scale) in BLOCK_SCALES.values()):
            raise UnsupportedProblemError(f"n is {problem.n}; {fault}")
        if fault := fault_of_m(epilogue, problem.m):
            raise UnsupportedProblemError(f"m is {problem.m}; {fault}")
        if epilogue.scale and problem.d_dtype != "e4m3":
            raise UnsupportedProblemError(
                f"D is {problem.d_dtype}; the epilogue scales blocks of its columns for e4m3, so D must be e4m3"
            )
        for table in self._tables_for(problem, arithmetic):
            if (members := table.serving(problem, sm_count)) is None or members.size:
                return table, members
        return None

    def _way_out(self, problem: GemmProblem, sm_count: int | None, arithmetic: Arithmetic) -> str:
        """Return what to change so that a kernel with an arithmetic supports a problem; empty where nothing helps."""
        if sm_count is not None and self.find(problem, None, arithmetic):
            return "leave out sm_count"

        def us(changed: GemmProblem, _: bool) -> float:
            return 1.0 if self.find(changed, sm_count, arithmetic) else inf

        if (changes := fewest_changes(problem, False, us)) is None:
            return ""
        if is_mixed(problem.a_dtype, problem.b_dtype):  # then the call may be the transpose
            return "make the narrow operand contiguous along K, others along one extent, and align all to 16 bytes"
        return changes.advice

    def _tables_for(self, problem: GemmProblem, arithmetic: Arithmetic | None) -> Iterator[FeatureTable]:
        """Yield tables for the formats of a problem, in order of preference: kernels that accumulate as requested, then
        those that accumulate more precisely. Within each, where all operands are aligned, the preferred families for
        its number of rows come before all families."""
        formats = format_of_problem(problem)
        families = (_preferred(min(problem.m, problem.n)), _ALL) if is_aligned(problem) else (_ALL,)
        for precise in (False, True):
            for names in families:
                key = formats, precise, names, arithmetic
                if key not in self._tables:  # concurrent threads would make the same one
                    check_formats(problem)
                    make = partial(self._table, names, problem, precise, arithmetic)
                    self._tables[key] = self._keep(key, self._network, make) if self._keep else make()
                if (table := self._tables[key]) is not None:
                    yield table

    def _table(
        self, families: _Families, problem: GemmProblem, precise: bool, arithmetic: Arithmetic | None
    ) -> FeatureTable | None:
        """Return the table of the kernels of some families for the formats of a problem; None where there are none."""
        entries = [entry for name in families for entry in self._of_family(name, problem, precise, arithmetic)]
        return FeatureTable.of(entries, self._gpu, self._network) if entries else None

    def _of_family(
        self, family: FamilyName, problem: GemmProblem, precise: bool, arithmetic: Arithmetic | None
    ) -> list[Entry]:
        """Return the kernels of a family for the formats of a problem."""
        key = format_of_problem(problem), precise, family, arithmetic
        if key not in self._entries:
            make = self._more_precise if precise else self._both_orientations
            self._entries[key] = make(problem, family, arithmetic)
        return self._entries[key]

    def _both_orientations(
        self, problem: GemmProblem, family: FamilyName, arithmetic: Arithmetic | None
    ) -> list[Entry]:
        """Return the kernels of a family for a problem, and those for its transpose where that is equivalent."""
        entries = [(kernel, config, False) for kernel, config in self._members(problem, family, arithmetic)]
        if problem.can_transpose:
            members = self._members(problem.transposed, family, arithmetic)
            entries += [(kernel, config, True) for kernel, config in members]
        return entries

    def _more_precise(self, problem: GemmProblem, family: FamilyName, arithmetic: Arithmetic | None) -> list[Entry]:
        """Return kernels of a family that accumulate more precisely than requested."""
        entries: list[Entry] = []
        if in_f32 := with_f32_sums(problem):
            entries += self._both_orientations(in_f32, family, arithmetic)
        if problem.promote and FAMILIES[family].sums_exactly:
            members = self._members(problem.but(promote=0), family, arithmetic)
            entries += [(kernel, config, False) for kernel, config in members]
        return entries

    def _members(
        self, problem: GemmProblem, family: FamilyName, arithmetic: Arithmetic | None
    ) -> Iterator[tuple[SlicedKernel, GemmConfig]]:
        """Yield the kernels of a family for the formats of a problem, with each number of slices to choose from:
        kernels with exactly these formats first, then those that take any major."""
        for formats in serving_formats(problem):
            for name, config in self.variants.of(formats, problem.epilogue).items():
                if config.family == family:
                    for kernel in kernels_of(name, config, arithmetic):
                        yield kernel, config


def _without(
    arithmetic: Arithmetic, problem: GemmProblem, sm_count: int | None, found: Found, way: str
) -> UnsupportedProblemError:
    """Return the error for a problem that kernels support, though not those of an arithmetic. ``way`` says what to
    change."""
    from gemmill.library.arithmetic import arithmetic_of  # programs that require no arithmetic start faster

    table, members = found
    others = {
        arithmetic_of(table.config(i), table.kernels[i].slices)
        for i in (range(len(table.kernels)) if members is None else members.tolist())
    }
    names = sorted((str(other) for other in others if other.is_fixed), key=lambda name: (len(name), name))
    bound = "" if sm_count is None else f" on {sm_count} SMs"
    own = ", ".join(names[:_NAMED]) or "none that is the same for every M"
    ways = filter(None, (way, "pass one of these as bits" if names else "", "leave out bits"))
    return UnsupportedProblemError(
        f"no kernel with arithmetic {arithmetic} supports {problem}{bound}; kernels that do have {own}: "
        f"{', or '.join(ways)}"
    )


def _refuse_extents(problem: GemmProblem) -> None:
    for extent in ("m", "n", "k", "batch"):
        if type(value := getattr(problem, extent)) is not int or not 0 <= value <= MAX_EXTENT:
            raise UnsupportedProblemError(f"{extent} is {value!r}; it must be a whole number from 0 to {MAX_EXTENT:,}")


def _preferred(rows: int) -> _Families:
    """Return the families that are considered first for this many rows of the shorter side of D."""
    return _FEW_ROWS if rows <= _MOST_ROWS else _MANY_ROWS


_FEW_ROWS: _Families = tuple(name for name, family in FAMILIES.items() if family.is_preferred)
_MANY_ROWS: _Families = tuple(name for name in _FEW_ROWS if FAMILIES[name].most_rows == MAX_EXTENT)
_MOST_ROWS = min(FAMILIES[name].most_rows for name in _FEW_ROWS)
