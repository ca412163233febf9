"""What a selector answers: the kernel that a problem goes to, and why."""

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
    from gemmill.runtime.select.slow_path import SlowPath

RUNNERS_UP = 4
"""Most runners-up that a choice names."""

RunnersUp = tuple[tuple[SlicedKernel, float], ...]
Rows = Literal["m", "n"]
"""The extent of a problem that is the caller's M: ``n`` where the problem is the transpose of the call."""


@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """The kernel that a problem goes to."""

    kernel: SlicedKernel
    """The kernel and the slices of K of its launch."""
    config: GemmConfig
    explain: Callable[[], str] = field(compare=False)
    """Makes :attr:`reason`, which few read."""
    predicted_us: float
    """Time to expect, in microseconds: measured or modelled, as ``source`` says."""
    rank: Callable[[], RunnersUp] = field(compare=False)
    """Makes :attr:`runners_up`, likewise."""
    source: Literal["measured", "model"]
    """What the choice rests on."""
    swap_ab: bool = False
    """Whether the kernel is to run the transposed problem, D^T = B^T A^T: see :attr:`GemmProblem.transposed`."""

    problem: GemmProblem | None = None
    """What it is to solve; None of a choice that no selector has answered yet."""
    slow_path: SlowPath | None = None
    """What the problem loses to one of other formats that fast kernels are made for; None where that is nothing
    much."""

    def answering(self, problem: GemmProblem, slow_path: SlowPath | None) -> Choice:
        """The same choice, for a problem; faster than ``dataclasses.replace``."""
        fields = self.kernel, self.config, self.explain, self.predicted_us, self.rank, self.source, self.swap_ab
        return Choice(*fields, problem, slow_path)

    def __reduce__(self) -> tuple[type[Choice], tuple[object, ...]]:
        """With the reason and the runners-up made: a selector does not go to another process."""
        explain, rank = partial(str, self.reason), partial(tuple, self.runners_up)
        fields = self.kernel, self.config, explain, self.predicted_us, rank, self.source, self.swap_ab
        return Choice, (*fields, self.problem, self.slow_path)

    @property
    def name(self) -> str:
        """Kernel name."""
        return self.kernel.name

    @property
    def reason(self) -> str:
        """Why it won, in a sentence; and which operands are copied into aligned memory before it."""
        return self.explain()

    @property
    def runners_up(self) -> RunnersUp:
        """The next best kernels and their times in microseconds."""
        return self.rank()

    @property
    def slices(self) -> int:
        """Slices of K of the launch of a split-K kernel; 1 of others."""
        return self.kernel.slices

    @property
    def of_transposed(self) -> Choice:
        """The same choice, which speaks of operands as the transposed problem has them."""
        return self if self.slow_path is None else replace(self, slow_path=self.slow_path.transposed)

    @property
    def why(self) -> str:
        """The reason, and where a problem like it would be much faster what that costs, and what to change."""
        return self.reason if self.slow_path is None else f"{self.reason}; {self.slow_path}"

    def __repr__(self) -> str:
        return f"<Choice {self.kernel} for {self.problem}: {self.why}>"

    @property
    def swapped(self) -> bool:
        """The earlier name of :attr:`swap_ab`."""
        return _renamed(self)


class Candidate(NamedTuple):
    """A kernel that may be the best for a problem."""

    kernel: SlicedKernel
    """The kernel and the slices of K of its launch."""
    swap_ab: bool
    """As :attr:`Choice.swap_ab`."""
    us: float
    """Microseconds to expect."""

    @property
    def name(self) -> str:
        """Kernel name."""
        return self.kernel.name

    @property
    def swapped(self) -> bool:
        """The earlier name of :attr:`swap_ab`."""
        return _renamed(self)


def in_words(config: GemmConfig, problem: GemmProblem, swap_ab: bool) -> str:
    """What a reason adds for a kernel that runs the transposed problem, or realigned operands."""
    words = "; it runs D^T = B^T A^T, with A and B swapped" if swap_ab else ""
    if is_aligned(problem):
        return words
    names, problem = ("BAC", problem.transposed) if swap_ab else ("ABC", problem)
    if found := sorted(names["abc".index(x)] for x in realigned(config, problem)):
        words += f"; {' and '.join(found)}, which TMA cannot move, {'is' if len(found) == 1 else 'are'} copied first"
    return words


def warn_of_quick() -> None:
    """DeprecationWarning of a call that still has ``quick``: decision trees chose for it while the model was slow."""
    warnings.warn("quick has no effect: every choice is as quick; leave it out", DeprecationWarning, stacklevel=3)


def _renamed(found: Choice | Candidate) -> bool:
    warnings.warn(f"{type(found).__name__}.swapped is called swap_ab", DeprecationWarning, stacklevel=3)
    return found.swap_ab
