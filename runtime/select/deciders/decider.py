"""What a decider is."""

from __future__ import annotations

from typing import Protocol

from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice import Choice, Rows


class Decider(Protocol):
    """Decides which kernel a problem goes to."""

    def decide(
        self, problem: GemmProblem, sm_count: int | None, invariant_to: Rows | None, quick: bool
    ) -> Choice | None:
        """The kernel for a problem; None where this decider says nothing of what is asked.

        Args:
            problem: what the kernel must solve.
            sm_count: most SMs that it may take, of a GPU that has more; None: all.
            invariant_to: the extent, the caller's M, that the kernel must not depend on; nor does it on the batch.
            quick: whether a decision tree may decide in place of the model.

        Raises:
            UnsupportedProblemError: there is no such kernel.
        """
        ...
