"""A call made ready: its kernel selected, built and loaded. What is kept for all calls of one signature."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.select.choice import Choice


class Launches(Protocol):
    """What is launched again and again: a kernel, or where D is empty what resets outputs of an epilogue."""

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream, on operands at some addresses, aligned as those it was made for."""


class PreparedCall:
    """What a call needs for its launch, whichever tensors of its signature it has; it holds none of them."""

    def __init__(
        self,
        problem: GemmProblem,
        kernel: str | None,
        choice: Choice | None,
        memory: Callable[[Addresses], None],
        new_launcher: Callable[[], Launches],
    ) -> None:
        self.problem = problem
        """What it solves."""
        self.kernel = kernel
        """Name of its kernel; None where D is empty."""
        self.choice = choice
        """Why its kernel was selected; None where the caller named the kernel or D is empty."""
        self.memory = memory
        """Refuses addresses at which what is written lies where something else is, or nothing at all."""
        self.new_launcher = new_launcher
        """Makes a launcher of its own for a plan, so that plans on other tensors of the signature do not move its
        addresses to and fro."""

    def __str__(self) -> str:
        if self.kernel is None:
            return f"{self.problem}: D is empty, and no kernel is launched"
        why = "the call names it" if self.choice is None else self.choice.why
        return f"{self.problem} goes to {self.kernel}: {why}"

    @cached_property
    def launcher(self) -> Launches:
        """The launcher that calls of the signature share, made for the first."""
        return self.new_launcher()
