"""Quick selection: a decision tree that stands in for the model, for problems that are launched a few times only."""

from __future__ import annotations

from math import nan
from typing import Any, NamedTuple

from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.epilogues.parse import LINEAR, is_gated
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import Choice, Rows, in_words
from gemmill.runtime.select.decision_tree import LARGEST_EXTENT, Tree, trees_of
from gemmill.runtime.select.kernels.formats import with_declared_scales
from gemmill.runtime.select.kernels.groups import Kernels
from gemmill.runtime.select.kernels.variations import with_epilogue, with_types_of
from gemmill.runtime.select.measured import formats_of
from gemmill.runtime.select.models import path_of, sound


class _OfFormats(NamedTuple):
    """The choices for problems of some formats."""

    tree: Tree
    choices: dict[int, Choice | None]
    """By the index of a kernel of the tree, as they are asked for; None for one that is not here."""
    gated: bool
    """Whether N must be even."""


class ByDecisionTree:
    """Decides where it may, and a tree was trained for the formats of a problem.

    Args:
        kernels: the kernels that there are.
        gpu: where.
    """

    def __init__(self, kernels: Kernels, gpu: Gpu) -> None:
        self._configs, self._varies, self._gpu = kernels.configs, kernels.variants.varies, gpu
        self._found: dict[tuple[Any, ...], _OfFormats | None] = {}
        """By all of a problem but its extents."""

    def decide(
        self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool
    ) -> Choice | None:
        """What a tree names; None where there is none for the formats of the problem, or for its extents, or where the
        kernel is not here."""
        if not quick or sm_count is not None or invariant_to is not None:
            return None
        m, n, k = problem.m, problem.n, problem.k
        if not (0 < m <= LARGEST_EXTENT and 0 < n <= LARGEST_EXTENT and 0 < k <= LARGEST_EXTENT):
            return None
        key = formats_of(problem)
        if (found := self._found.get(key)) is None and key not in self._found:
            found = self._found[key] = self._of_formats(problem)
        if found is None or (found.gated and n % 2):
            return None
        kernel = found.tree.kernel(m, n, k, self._gpu.sms)
        if kernel not in found.choices:
            found.choices[kernel] = self._named_by(found.tree, kernel, problem)
        return found.choices[kernel]

    def _of_formats(self, problem: GemmProblem) -> _OfFormats | None:
        """The tree that was trained for the formats of a problem without its epilogue, with scales in f32."""
        table = trees_of(self._gpu.name, self._gpu.model).get(
            formats_of(with_declared_scales(problem).but(epilogue=LINEAR))
        )
        if table is None:
            return None
        with sound(path_of(self._gpu.name, "quick", self._gpu.model)):
            return _OfFormats(Tree.of(table), {}, is_gated(problem.epilogue))

    def _named_by(self, tree: Tree, kernel: int, problem: GemmProblem) -> Choice | None:
        """The choice of a kernel of a tree, with the types and the epilogue of a problem; None where it is not here."""
        name, swap_ab = tree.kernels[kernel]
        if swap_ab and not problem.can_transpose:
            return None
        p = problem.transposed if swap_ab else problem
        config: GemmConfig | None = with_types_of(parse_name(name), p)
        if config is not None and p.epilogue != LINEAR:
            config = with_epilogue(config, p.epilogue)
        if config is None:
            return None
        own = kernel_name(config)
        if own not in self._configs and not (self._varies and name in self._configs):
            return None
        reason = f"the decision tree that stands in for the model of {self._gpu.name} names it"
        return Choice(own, config, reason + in_words(config, problem, swap_ab), nan, (), "quick", swap_ab)
