"""Groups of kernels that serve the same problems, with their figures for the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu, serving
from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.dtypes import FP8
from gemmill.library.epilogues.parse import is_gated
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.legality.aligns import least_aligns
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.model import FeatureTable
from gemmill.runtime.select.kernels.faults import is_aligned, refusal
from gemmill.runtime.select.kernels.formats import Format, check_formats, format_of_problem, serving_formats
from gemmill.runtime.select.kernels.variations import Variants

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Integers

Families = tuple[FamilyName, ...]
_ALL: Families = tuple(FAMILIES)
_EXTENTS = ("m", "n", "k", "batch")
_SUMMED_IN_F16 = frozenset(("f16", *FP8))
"""Types of A and B whose sums tensor cores can keep in f16."""


class Group(NamedTuple):
    """Kernels that serve the same problem formats, some of them the transposed problem: each is here once or twice."""

    names: tuple[str, ...]
    configs: tuple[GemmConfig, ...]
    aligns: Integers
    """Alignments in bytes of A, B, C and D that a problem must have for each kernel."""
    table: FeatureTable

    @classmethod
    def of(cls, configs: Mapping[str, GemmConfig], swap_ab: bool = False) -> Group:
        """Kernels by name, for problems as they are or transposed, where A and B change places."""
        order = [1, 0, 2, 3] if swap_ab else [0, 1, 2, 3]
        aligns = np.array([least_aligns(config) for config in configs.values()])[:, order]
        return cls(tuple(configs), tuple(configs.values()), aligns, FeatureTable.of([*configs.values()], swap_ab))

    @classmethod
    def joined(cls, groups: Sequence[Group]) -> Group:
        """The kernels of several groups, in order."""
        return cls(
            tuple(itertools.chain.from_iterable(group.names for group in groups)),
            tuple(itertools.chain.from_iterable(group.configs for group in groups)),
            np.concatenate([group.aligns for group in groups]),
            FeatureTable.joined([group.table for group in groups]),
        )

    def serving(self, problem: GemmProblem, sm_count: int | None) -> Integers:
        """Indices of the kernels whose alignments a problem meets, and which stay within some SMs: what realigns
        operands does not."""
        if sm_count is None and is_aligned(problem):  # no kernel wants more
            return np.arange(len(self.names))
        offered = (problem.a_align, problem.b_align, problem.c_align, problem.d_align)
        serves = (self.aligns <= offered).all(axis=1)
        if sm_count is not None:
            serves &= ~self.table.realigned(problem).any(axis=0)
            serves &= (self.table.tiling.ctas <= sm_count) & ~self.table.has_second_kernel
        return np.flatnonzero(serves)

    def first(self, order: Iterable[int], count: int) -> list[int]:
        """The first few kernels, each once."""
        found: dict[str, int] = {}
        for i in order:
            found.setdefault(self.names[i], i)
        return [*found.values()][:count]


class Kernels:
    """The kernels of a set that serve a problem on a GPU.

    Args:
        configs: the kernels by name.
        gpu: where; kernels for other compute capabilities are passed over.
        varies: whether kernels may be taken otherwise than they are declared, as :class:`Variants` says.
    """

    def __init__(self, configs: Mapping[str, GemmConfig], gpu: Gpu, varies: bool) -> None:
        self.configs = configs
        self._gpu = gpu
        targets = serving(gpu.capability)
        own = {name: config for name, config in configs.items() if config.target in targets}
        self.variants = Variants(own, varies)
        self._groups: dict[tuple[Format, bool, Families], Group | None] = {}
        """By formats, whether they sum more precisely, and families."""
        self._parts: dict[tuple[Format, bool, FamilyName], list[Group]] = {}
        """Likewise, of one family."""

    def serving(self, problem: GemmProblem, sm_count: int | None) -> tuple[Group, Integers]:
        """Kernels for the formats of a problem, and which of them serve it: of those that sum as asked or, where none
        does, more precisely.

        Raises:
            UnsupportedProblemError: no kernel serves it; names the constraint and the nearest kernel.
        """
        if (found := self.find(problem, sm_count)) is not None:
            return found
        if sm_count is not None and (found := self.find(problem, None)):
            group, serving = found
            raise UnsupportedProblemError(
                f"no kernel serves {problem} on {sm_count} SMs: those that serve it are in clusters of at least "
                f"{group.table.tiling.ctas[serving].min():.0f} CTAs, or reduce in a second kernel or copy operands "
                "first, which keeps to no bound; raise sm_count or leave it out"
            )
        raise refusal(self.configs, problem, self._gpu)

    def find(self, problem: GemmProblem, sm_count: int | None) -> tuple[Group, Integers] | None:
        """As :meth:`serving`, or None.

        Raises:
            UnsupportedProblemError: no kernel could serve it.
        """
        for extent in _EXTENTS:
            if type(value := getattr(problem, extent)) is not int or not 0 <= value <= MAX_EXTENT:
                raise UnsupportedProblemError(
                    f"{extent} is {value!r}; it must be a whole number from 0 to {MAX_EXTENT:,}"
                )
        if problem.n % 2 and is_gated(problem.epilogue):
            raise UnsupportedProblemError(f"n is {problem.n}; an epilogue of pairs of columns needs an even one")
        for group in self._groups_for(problem):
            if (serving := group.serving(problem, sm_count)).size:
                return group, serving
        return None

    def _groups_for(self, problem: GemmProblem) -> Iterator[Group]:
        """Kernels for problems of the same formats, group by group: the first that serves one is asked. Those that sum
        as asked, then those that keep more of the sums; of each, where all operands are aligned, those of
        preferred families for as many rows before all."""
        formats = format_of_problem(problem)
        families = (_preferred(min(problem.m, problem.n)), _ALL) if is_aligned(problem) else (_ALL,)
        for precise, of in itertools.product((False, True), families):
            key = formats, precise, of
            if key not in self._groups:  # several threads would make the same
                check_formats(problem)
                # Also those for fewer rows, so that no later problem of these formats waits for them.
                names = _ALL if of == _ALL else _preferred(0)
                parts = {name: self._of_family(name, problem, precise) for name in names}
                made = [group for name in of for group in parts[name]]
                self._groups[key] = Group.joined(made) if made else None
            if (group := self._groups[key]) is not None:
                yield group

    def _of_family(self, family: FamilyName, problem: GemmProblem, precise: bool) -> list[Group]:
        """The kernels of a family for the formats of a problem, made once: they take milliseconds."""
        key = format_of_problem(problem), precise, family
        if key not in self._parts:
            make = self._more_precise if precise else self._either_way
            self._parts[key] = make(problem, family)
        return self._parts[key]

    def _either_way(self, problem: GemmProblem, family: FamilyName) -> list[Group]:
        """The kernels of a family for a problem, and for its transpose where that is the same."""
        groups = [Group.of(configs) for configs in self._members(problem, family)]
        if problem.can_transpose:
            groups += (Group.of(configs, swap_ab=True) for configs in self._members(problem.transposed, family))
        return groups

    def _more_precise(self, problem: GemmProblem, family: FamilyName) -> list[Group]:
        """Kernels of a family that keep more of the sums than is asked for."""
        groups = []
        if problem.accumulator == "f16" and {problem.a_dtype, problem.b_dtype} <= _SUMMED_IN_F16:
            groups += self._either_way(problem.but(accumulator="f32"), family)
        if problem.promote and FAMILIES[family].sums_exactly:
            groups += (Group.of(configs) for configs in self._members(problem.but(promote=0), family))
        return groups

    def _members(self, problem: GemmProblem, family: FamilyName) -> Iterator[Mapping[str, GemmConfig]]:
        """Kernels of a family for the formats of a problem: those of just these formats first, then those that take
        any majors."""
        for formats in serving_formats(problem):
            configs = self.variants.of(formats, problem.epilogue)
            if own := {name: config for name, config in configs.items() if config.family == family}:
                yield own


def _preferred(rows: int) -> Families:
    """The families that are asked alone, of those that serve, for so many rows of the shorter side of D."""
    return tuple(name for name, family in FAMILIES.items() if family.is_preferred and rows <= family.most_rows)
