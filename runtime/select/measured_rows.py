"""Measured rows: times of kernels on a problem, from the caller's records or from the shipped model."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.dtypes import DTYPES, compatible_types
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import RUNNERS_UP, Choice, in_words
from gemmill.runtime.select.cost.energy import AS_FAST, THRIFTY, padding, thriftiest
from gemmill.runtime.select.cost.table import covering, sides
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.kernels.faults import runs_transposed
from gemmill.runtime.select.kernels.formats import with_declared_scales
from gemmill.runtime.select.kernels.tables import Kernels
from gemmill.runtime.select.kernels.variations import with_types_of
from gemmill.runtime.select.model_file import FORMATS, GpuModel, formats_of

if TYPE_CHECKING:
    from gemmill.library.arithmetic import Arithmetic

Times = list[tuple[float, SlicedKernel]]
"""Microseconds and kernels, the fastest first."""


class MeasuredRows:
    """Measurements on all SMs of a GPU.

    Args:
        kernels: the available kernels.
        gpu: the GPU.
        model: the model whose tables hold the shipped rows; None: there are none.
        decisions: measured times; those of other GPUs and of unavailable kernels are ignored.
    """

    def __init__(self, kernels: Kernels, gpu: Gpu, model: GpuModel | None, decisions: Iterable[Decision]) -> None:
        self._configs, self._kernels, self._gpu, self._model = kernels.configs, kernels, gpu, model
        self._rows: dict[GemmProblem, dict[SlicedKernel, Decision]] = defaultdict(dict)
        for decision in decisions:
            if decision.kernel in self._configs and figures(decision.gpu).name == gpu.name:
                self._rows[decision.problem][decision.sliced] = decision
        self._places: dict[tuple[Any, ...], Sequence[tuple[Any, ...]]] = {}
        """Keys of tables by the formats of problems."""

    def rows_of_caller(self, problem: GemmProblem, arithmetic: Arithmetic | None = None) -> Times:
        """Return the caller's rows for a problem: with the expected rows of a masked group, or else without. With
        ``arithmetic``, only those of kernels that have it.

        Brief measurements count only where there are no others, since they ran at other clocks.
        """
        if not self._rows:
            return []
        rows = self._rows.get(problem)
        if rows is None and problem.expected_rows:
            rows = self._rows.get(problem.but(expected_rows=None))
        decisions = [row for row in (rows or {}).values() if self._has(row.sliced, arithmetic)]
        final = [decision for decision in decisions if decision.final]
        return sorted((decision.us, decision.sliced) for decision in final or decisions)

    def rows_that_ship(self, problem: GemmProblem, arithmetic: Arithmetic | None = None) -> Times:
        """Return the shipped burst rows for a problem, for its types or compatible ones; with ``arithmetic``, only
        those of kernels that have it. Each has only a few kernels, so it counts only where the fastest of them is
        available."""
        if self._model is None:
            return []
        key = formats_of(problem)
        if (places := self._places.get(key)) is None:
            places = self._places[key] = self._places_of(self._model, problem)
        extents = problem.extents
        for place in places:
            if extents in self._model.tables[place]:
                changes = dict(zip(FORMATS, place, strict=True))
                rows = self._rows_of(self._model, problem, problem.but(**changes), arithmetic)
                if rows or place == key:
                    return rows
        return []

    def times(self, problem: GemmProblem, arithmetic: Arithmetic | None = None) -> Times:
        """Return the caller's rows or, where there are none, the shipped ones."""
        return self.rows_of_caller(problem, arithmetic) or self.rows_that_ship(problem, arithmetic)

    def choice(self, problem: GemmProblem, rows: Times, saves_energy: bool) -> Choice:
        """Return the fastest kernel of a problem's rows as a choice; to save energy, one that is about as fast."""
        first = self._thriftiest(problem, rows) if saves_energy else 0
        (us, best), others = rows[first], rows[:first] + rows[first + 1 :]
        config = self.config(best.name)
        swap_ab = runs_transposed(config, problem)
        types = "" if best.name in self._configs else " with compatible types"

        def explain() -> str:
            claim = f"{THRIFTY}one" if first else "fastest"
            of = f"of {len(rows)} kernels measured for this problem{types} on {self._gpu.name}"
            return f"{claim} {of}: {us:.1f} us{in_words(config, problem, swap_ab)}"

        runners_up = tuple((kernel, us) for us, kernel in others[:RUNNERS_UP])
        return Choice(best, config, explain, us, lambda: runners_up, "measured", swap_ab)

    def _thriftiest(self, problem: GemmProblem, rows: Times) -> int:
        """Return the index of the row whose kernel saves energy."""
        near = [row for row in rows if row[0] <= AS_FAST * rows[0][0]]
        if len(near) == 1:
            return 0
        configs = [self.config(kernel.name) for _, kernel in near]
        side = sides(np.array([runs_transposed(config, problem) for config in configs]))
        covered = padding(**covering(configs), side=side, problem=problem)
        return thriftiest(np.array([us for us, _ in near]), covered)

    def config(self, name: str) -> GemmConfig:
        """Return the config of a kernel name, which may be unavailable."""
        return self._configs.get(name) or parse_name(name)

    def _has(self, kernel: SlicedKernel, arithmetic: Arithmetic | None) -> bool:
        """Whether a kernel has an arithmetic; every one has None."""
        if arithmetic is None:
            return True
        from gemmill.library.arithmetic import arithmetic_of  # programs that require no arithmetic start faster

        return arithmetic_of(self.config(kernel.name), kernel.slices) == arithmetic

    def _places_of(self, model: GpuModel, problem: GemmProblem) -> Sequence[tuple[Any, ...]]:
        """Return the keys of the tables that may have rows for problems with some formats: their own, and those with
        compatible types and scales and a D of the same width."""
        places = {formats_of(problem): None}
        types, scaled = (problem.a_dtype, problem.b_dtype, problem.d_dtype), with_declared_scales(problem)
        if {*types} <= DTYPES.keys():
            outputs = [name for name, dtype in DTYPES.items() if dtype.bits == DTYPES[types[2]].bits]
            compatible = itertools.product(compatible_types(types[0]), compatible_types(types[1]), outputs)
            for a, b, d in (types, *compatible):
                places[formats_of(scaled.but(a_dtype=a, b_dtype=b, d_dtype=d))] = None
        return [place for place in places if place in model.tables]

    def _rows_of(
        self, model: GpuModel, problem: GemmProblem, measured: GemmProblem, arithmetic: Arithmetic | None
    ) -> Times:
        """Return the rows of a measured problem, with the types of another problem where the kernels may be used with
        them."""
        rows = [row for row in model.times(measured) if self._has(row[1], arithmetic)]
        if not rows or rows[0][1].name not in self._configs:
            return []
        available = [(us, kernel) for us, kernel in rows if kernel.name in self._configs]
        if measured == problem:
            return available
        if not self._kernels.variants.has_types_of(problem):
            return []
        converted = []
        for us, kernel in available:
            config = self._configs[kernel.name]
            retyped_config = with_types_of(config, problem.transposed if runs_transposed(config, measured) else problem)
            if retyped_config is not None:
                converted.append((us, kernel._replace(name=kernel_name(retyped_config))))
        return converted
