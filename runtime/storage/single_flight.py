"""Lets one of several concurrent threads make something, and gives the others its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Things being made, by name. Threads share one; a forked process needs another, since nobody there would finish
    what another thread started."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    def get(self, name: str, make: Callable[[], T], seconds: float | None = None) -> tuple[T, bool]:
        """Return the result of ``make``, from this thread or the one that came first, and whether it was this one.

        Args:
            name: name of the thing; ``make`` must not request it again.
            make: makes it. If it raises, all waiting threads raise the same, unless its thread was interrupted: then
                the next thread makes it.
            seconds: how long to wait for another thread.

        Raises:
            TimeoutError: another thread takes longer.
        """
        flight: _Flight[T] = _Flight()
        while (other := self._flights.setdefault(name, flight)) is not flight:
            if not other.is_over.wait(seconds):
                raise TimeoutError(f"another thread needs more than {seconds} s for {name}")
            if other.error is not None:
                raise other.error
            for result in other.results:
                return result, False
        try:
            flight.results.append(result := make())
            return result, True
        except Exception as error:
            flight.error = error
            raise
        finally:
            del self._flights[name]
            flight.is_over.set()


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.results: list[T] = []
        self.error: Exception | None = None
