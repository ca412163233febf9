"""By measurement: the fastest of the kernels that were measured on the problem."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTYPES, DTypeName, with_alike
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import RUNNERS_UP, Candidate, Choice, Rows, in_words
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.kernels.faults import runs_transposed
from gemmill.runtime.select.kernels.formats import with_declared_scales
from gemmill.runtime.select.kernels.groups import Kernels
from gemmill.runtime.select.kernels.variations import named, with_types_of
from gemmill.runtime.select.measured import Measured, measured


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
        if not (shipped := tables.times(problem)):
            return self._times_of_types_alike(tables, problem)
        if shipped[0][1] not in self._configs:
            return []
        return [(us, name) for us, name in shipped if name in self._configs]

    def _given(self, problem: GemmProblem) -> Mapping[str, Decision] | None:
        """The measurements of a problem that were given: with the rows of a slot that it expects, or without any."""
        own = self._own.get(problem)
        return self._own.get(problem.but(expected_rows=None)) if own is None and problem.expected_rows else own

    def _times_of_types_alike(self, tables: Measured, problem: GemmProblem) -> list[tuple[float, str]]:
        """What ships of the problem with types alike, of scales as well, and a D as wide, of the same kernels with the
        types asked for."""
        own, scaled = (problem.a_dtype, problem.b_dtype, problem.d_dtype), with_declared_scales(problem)
        others = _measured_alike(self._gpu, *own)
        if scaled != problem:
            others = own, *others
        if not others or not self._variants.has_types_of(problem):
            return []
        for a, b, d in others:
            other = scaled.but(a_dtype=a, b_dtype=b, d_dtype=d)
            shipped = tables.times(other)
            if not shipped or shipped[0][1] not in self._configs:
                continue
            found = []
            for us, name in shipped:
                if (config := self._configs.get(name)) is not None:
                    changed = with_types_of(config, problem.transposed if runs_transposed(config, other) else problem)
                    found += [(us, name) for name in named([changed])]
            return found
        return []

    def _config(self, name: str) -> GemmConfig:
        """The kernel of a name, which may be none of those given."""
        return self._configs.get(name) or parse_name(name)


def _comparable(decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Of measurements of one problem those at length if there are any: brief ones were at other clocks."""
    return [decision for decision in decisions if decision.final] or decisions


@lru_cache
def _measured_alike(gpu: Gpu, a: DTypeName, b: DTypeName, d: DTypeName) -> Sequence[tuple[Any, Any, Any]]:
    """Types like some of A and B, and of a D as wide, of which something ships that was measured on a GPU."""
    if (tables := measured(gpu.name, gpu.model)) is None or not {a, b, d} <= DTYPES.keys():
        return []
    outputs = [name for name, dtype in DTYPES.items() if dtype.bits == DTYPES[d].bits]
    alike = itertools.product(with_alike(a), with_alike(b), outputs)
    return [types for types in alike if types != (a, b, d) and types in tables.types]
