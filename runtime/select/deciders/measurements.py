"""By measurement: the fastest of the kernels that were measured on the problem."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTYPES, with_alike
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import RUNNERS_UP, Candidate, Choice, Rows, in_words
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.kernels.faults import runs_transposed
from gemmill.runtime.select.kernels.formats import with_declared_scales
from gemmill.runtime.select.kernels.groups import Kernels
from gemmill.runtime.select.kernels.variations import named, with_types_of
from gemmill.runtime.select.measured import FORMATS, Measured, formats_of, measured


class ByMeasurement:
    """Decides where something was measured, on all SMs.

    Args:
        kernels: the kernels that there are.
        gpu: where.
        decisions: measured times; those of other GPUs and of kernels that are not here are passed over. Problems
            without any have those that ship (runtime/select/measured.py).
    """

    def __init__(self, kernels: Kernels, gpu: Gpu, decisions: Iterable[Decision]) -> None:
        self._configs, self._variants, self._gpu = kernels.configs, kernels.variants, gpu
        self._own: dict[GemmProblem, dict[str, Decision]] = defaultdict(dict)
        for decision in decisions:
            if decision.kernel in self._configs and figures(decision.gpu).name == gpu.name:
                self._own[decision.problem][decision.kernel] = decision
        self._places: dict[tuple[Any, ...], Sequence[tuple[Any, ...]]] = {}
        """Keys of the tables that ship by the formats of problems."""
        measured(gpu.name, gpu.model)  # read with the first choice, so that no later one waits for it

    def decide(
        self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool
    ) -> Choice | None:
        """The fastest kernel that was measured on the problem."""
        if sm_count is not None or invariant_to is not None or not (times := self.times(problem)):
            return None
        (us, best), *others = times
        config = self._config(best)
        swap_ab = runs_transposed(config, problem)
        types = "" if best in self._configs else " with types alike"
        reason = f"fastest of {len(times)} kernels measured for this problem{types} on {self._gpu.name}: {us:.1f} us"
        runners_up = tuple((name, us) for us, name in others[:RUNNERS_UP])
        reason += in_words(config, problem, swap_ab)
        return Choice(best, config, reason, us, runners_up, "measured", swap_ab)

    def was_given(self, problem: GemmProblem) -> bool:
        """Whether measurements of a problem were given, and not only ship."""
        return bool(self._given(problem))

    def candidates(self, problem: GemmProblem) -> list[Candidate]:
        """The kernels that were measured on a problem, the fastest first."""
        return [Candidate(n, runs_transposed(self._config(n), problem), us) for us, n in self.times(problem)]

    def times(self, problem: GemmProblem) -> list[tuple[float, str]]:
        """Microseconds measured on a problem, and kernels, the fastest first: those given or, where there are none,
        those that ship, for its types or for types alike. The latter are of a few kernels each, and say nothing where
        the fastest of them is not here."""
        if self._own and (own := self._given(problem)):
            return sorted((decision.us, decision.kernel) for decision in _comparable([*own.values()]))
        if (tables := measured(self._gpu.name, self._gpu.model)) is None:
            return []
        key, extents = formats_of(problem), problem.extents
        if (places := self._places.get(key)) is None:
            places = self._places[key] = self._places_of(tables, problem)
        for place in places:
            if extents in tables.tables[place]:
                other = problem.but(**dict(zip(FORMATS, place, strict=True)))
                if (times := self._times_of(tables, problem, other)) is not None:
                    return times
        return []

    def _given(self, problem: GemmProblem) -> Mapping[str, Decision] | None:
        """The measurements of a problem that were given: with the rows of a slot that it expects, or without any."""
        own = self._own.get(problem)
        return self._own.get(problem.but(expected_rows=None)) if own is None and problem.expected_rows else own

    def _places_of(self, tables: Measured, problem: GemmProblem) -> Sequence[tuple[Any, ...]]:
        """Keys of the tables that ship for problems of some formats: their own, and those of compatible types, of
        scales as well, and a D as wide, where kernels may be taken with the types of the problem."""
        places = {formats_of(problem): None}
        types, scaled = (problem.a_dtype, problem.b_dtype, problem.d_dtype), with_declared_scales(problem)
        if {*types} <= DTYPES.keys() and self._variants.has_types_of(problem):
            outputs = [name for name, dtype in DTYPES.items() if dtype.bits == DTYPES[types[2]].bits]
            for a, b, d in (types, *itertools.product(with_alike(types[0]), with_alike(types[1]), outputs)):
                places[formats_of(scaled.but(a_dtype=a, b_dtype=b, d_dtype=d))] = None
        return [place for place in places if place in tables.tables]

    def _times_of(self, tables: Measured, problem: GemmProblem, other: GemmProblem) -> list[tuple[float, str]] | None:
        """What ships of a problem, with the types of the first in the place of its own; None where the next of its
        tables may say more, as the fastest kernel is not here."""
        shipped = tables.times(other)
        here = [(us, name) for us, name in shipped if name in self._configs]
        if shipped[0][1] not in self._configs:
            return [] if other == problem else None
        if other == problem:
            return here
        found = []
        for us, name in here:
            config = self._configs[name]
            changed = with_types_of(config, problem.transposed if runs_transposed(config, other) else problem)
            found += [(us, name) for name in named([changed])]
        return found

    def _config(self, name: str) -> GemmConfig:
        """The kernel of a name, which may be none of those given."""
        return self._configs.get(name) or parse_name(name)


def _comparable(decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Of measurements of one problem those at length if there are any: brief ones were at other clocks."""
    return [decision for decision in decisions if decision.final] or decisions
