"""Of threads that want the same thing at the same time one makes it, and the others get what it got."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """What is being made, by name. Threads share one; a forked process needs its own, as nobody there would end what
    another thread had begun."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    def get(self, name: str, make: Callable[[], T], seconds: float | None = None) -> tuple[T, bool]:
        """What ``make`` returns, here or in the thread that came first; and whether it was here.

        Args:
            name: of what is made; ``make`` must not ask for it again.
            make: makes it. What it raises, all who wait raise, unless its thread was interrupted: then the next makes.
            seconds: how long to wait for another thread.

        Raises:
            TimeoutError: another thread takes longer.
        """
        flight: _Flight[T] = _Flight()
        while (other := self._flights.setdefault(name, flight)) is not flight:
            if not other.is_over.wait(seconds):
                raise TimeoutError(f"another thread takes longer than {seconds} s for {name}")
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
