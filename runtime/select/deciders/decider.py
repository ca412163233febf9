"""What a decider is."""

from __future__ import annotations

from typing import Protocol

from gemmill.runtime.select.choice import Asked, Choice


class Decider(Protocol):
    """Decides which kernel a problem goes to."""

    def decide(self, asked: Asked) -> Choice | None:
        """The kernel for what is asked; None where this decider says nothing of it."""
        ...
