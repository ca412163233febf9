"""A choice: the kernel that the selector picked for a problem, and the reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.kernels.faults import is_aligned, realigned

if TYPE_CHECKING:
    from gemmill.library.arithmetic import Arithmetic
    from gemmill.runtime.select.slow_path import SlowPath

RUNNERS_UP = 4
"""Most runners-up in a choice."""

RunnersUp = tuple[tuple[SlicedKernel, float], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """The kernel that was picked for a problem.

    Print ``why`` for the reason in words. ``kernel``, ``config``, ``predicted_us`` and ``runners_up`` are for programs.
    """

    kernel: SlicedKernel
    """The kernel and the slices of K of its launch."""
    config: GemmConfig
    explain: Callable[[], str] = field(compare=False)
    """Makes :attr:`reason`, without the arithmetic, on demand."""
    predicted_us: float
    """Expected time in microseconds; ``source`` says where it comes from."""
    rank: Callable[[], RunnersUp] = field(compare=False)
    """Makes :attr:`runners_up` on demand."""
    source: Literal["measured", "model", "table"]
    """Where the kernel and ``predicted_us`` come from: measurements, the model, or the choice table of a pack."""
    swap_ab: bool = False
    """Whether the kernel runs the transposed problem, D^T = B^T A^T: see :attr:`GemmProblem.transposed`."""

    problem: GemmProblem | None = None
    """The problem; None for a choice that no selector has returned yet."""
    slow_path: SlowPath | None = None
    """Predicted loss of the problem relative to one with other dtypes, layouts or alignments, for which there are fast
    kernels. None where the loss is small."""
    required: Arithmetic | None = None
    """The arithmetic that the caller required; None: any."""

    def answering(self, problem: GemmProblem, slow_path: SlowPath | None, required: Arithmetic | None = None) -> Choice:
        """Return the same choice for a problem; faster than ``dataclasses.replace``."""
        fields = self.kernel, self.config, self.explain, self.predicted_us, self.rank, self.source, self.swap_ab
        return Choice(*fields, problem, slow_path, required)

    def __reduce__(self) -> tuple[type[Choice], tuple[object, ...]]:
        """Pickle with the reason and the runners-up computed, since a selector cannot go to another process."""
        explain, rank = partial(str, self.explain()), partial(tuple, self.runners_up)
        fields = self.kernel, self.config, explain, self.predicted_us, rank, self.source, self.swap_ab
        return Choice, (*fields, self.problem, self.slow_path, self.required)

    @property
    def name(self) -> str:
        """Kernel name."""
        return self.kernel.name

    @property
    def reason(self) -> str:
        """Why the selector picked this kernel, in a sentence, which operands gemmill copies into aligned memory first,
        and its arithmetic."""
        return f"{self.explain()}; arithmetic {self.arithmetic}{'' if self.required is None else ', as required'}"

    @property
    def runners_up(self) -> RunnersUp:
        """The next best kernels and their times in microseconds."""
        return self.rank()

    @property
    def slices(self) -> int:
        """Slices of K of the launch of a split-K kernel; 1 for other kernels."""
        return self.kernel.slices

    @property
    def arithmetic(self) -> Arithmetic:
        """The order in which the kernel sums the products of an element of D."""
        from gemmill.library.arithmetic import arithmetic_of  # programs that require no arithmetic start faster

        return arithmetic_of(self.config, self.slices)

    @property
    def of_transposed(self) -> Choice:
        """The same choice with the names of operands in the transposed problem."""
        return self if self.slow_path is None else replace(self, slow_path=self.slow_path.transposed)

    @property
    def why(self) -> str:
        """The reason; on a slow path also the predicted cost and what to change."""
        return self.reason if self.slow_path is None else f"{self.reason}; {self.slow_path}"

    def __repr__(self) -> str:
        return f"<Choice {self.kernel} for {self.problem}: {self.why}>"

    @property
    def swapped(self) -> bool:
        """Deprecated name of :attr:`swap_ab`."""
        return _deprecated_swapped(self)


class Candidate(NamedTuple):
    """A kernel that may be the best for a problem."""

    kernel: SlicedKernel
    """The kernel and the slices of K of its launch."""
    swap_ab: bool
    """As :attr:`Choice.swap_ab`."""
    us: float
    """Expected time in microseconds."""

    @property
    def name(self) -> str:
        """Kernel name."""
        return self.kernel.name

    @property
    def swapped(self) -> bool:
        """Deprecated name of :attr:`swap_ab`."""
        return _deprecated_swapped(self)


def in_words(config: GemmConfig, problem: GemmProblem, swap_ab: bool) -> str:
    """Return what a reason adds for a kernel that runs the transposed problem, or that needs operands copied."""
    words = "; it runs the transposed problem D^T = B^T A^T" if swap_ab else ""
    if config.a.type.component:
        words += f"; A and B are split into {config.a.type.components} components of {config.a.loaded.name}"
    if is_aligned(problem):
        return words
    names, problem = ("BAC", problem.transposed) if swap_ab else ("ABC", problem)
    if operands := sorted(names["abc".index(x)] for x in realigned(config, problem)):
        words += f"; gemmill first copies {' and '.join(operands)} into aligned memory for TMA"
    return words


def warn_of_quick() -> None:
    """Give a DeprecationWarning for ``quick``, which selected with decision trees in earlier versions."""
    warnings.warn("quick has no effect: leave it out", DeprecationWarning, stacklevel=3)


def _deprecated_swapped(owner: Choice | Candidate) -> bool:
    warnings.warn(f"{type(owner).__name__}.swapped is deprecated: use swap_ab", DeprecationWarning, stacklevel=3)
    return owner.swap_ab
