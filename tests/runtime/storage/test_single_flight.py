"""Single flight: one makes, the others wait for it, also where it fails or is interrupted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cases.waiters import until_waiting

from gemmill.runtime.storage.single_flight import SingleFlight


def test_who_comes_later_gets_what_the_first_made() -> None:
    flights: SingleFlight[str] = SingleFlight()
    begun, may_end = threading.Event(), threading.Event()

    def make() -> str:
        begun.set()
        may_end.wait(30)
        return "made"

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(flights.get, "a", make)
        begun.wait(30)
        with pytest.raises(TimeoutError):
            flights.get("a", make, seconds=0.01)
        assert flights.get("b", lambda: "other") == ("other", True)
        second = threads.submit(flights.get, "a", lambda: "never")
        until_waiting(flights, 1)
        may_end.set()
        assert first.result() == ("made", True)
        assert second.result() == ("made", False)
    assert flights.get("a", lambda: "anew") == ("anew", True)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_is_for_all_who_wait_but_not_an_interruption(error: type[BaseException]) -> None:
    flights: SingleFlight[str] = SingleFlight()
    begun, may_end = threading.Event(), threading.Event()

    def fail() -> str:
        begun.set()
        may_end.wait(30)
        raise error("mine")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(flights.get, "a", fail)
        begun.wait(30)
        second = threads.submit(flights.get, "a", lambda: "made")
        until_waiting(flights, 1)
        may_end.set()
        assert isinstance(first.exception(), error)
        if error is ValueError:
            assert second.exception() is first.exception()
        else:
            assert second.result() == ("made", True)
