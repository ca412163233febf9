"""The breaker and what is remembered, by a clock that the tests turn."""

from __future__ import annotations

import pytest

from gemmill.runtime.storage.remote.misses import MOST_PAUSE_SECONDS, PAUSE_SECONDS, Breaker, Miss, Misses


class Clock:
    """Seconds that only grow."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_one_request_passes_after_a_pause_and_decides_for_the_others() -> None:
    breaker = Breaker(clock := Clock())
    assert breaker.passes()
    breaker.failed(miss := Miss("timeout", "too slow"))
    assert breaker.cause is miss
    clock.now += PAUSE_SECONDS - 1
    assert not breaker.passes()
    clock.now += PAUSE_SECONDS / 2 + 1
    assert [breaker.passes(), breaker.passes()] == [True, False]
    breaker.failed(miss)
    assert not breaker.passes()
    clock.now += 2 * PAUSE_SECONDS
    assert breaker.passes()
    breaker.succeeded()
    assert breaker.passes()
    assert breaker.passes()
    assert breaker.cause is None


def test_one_that_decides_and_does_not_return_is_followed_by_another() -> None:
    breaker = Breaker(clock := Clock())
    breaker.failed(Miss("timeout", "too slow"))
    for _ in range(2):
        clock.now += 2 * PAUSE_SECONDS
        assert [breaker.passes(), breaker.passes()] == [True, False]


@pytest.mark.parametrize(("asked", "least"), [(0, 1), (5, 5), (300, 300), (1e12, MOST_PAUSE_SECONDS)])
def test_pauses_are_as_long_as_the_remote_wants_or_longer_and_differ(asked: float, least: float) -> None:
    pauses = set()
    for _ in range(20):
        (breaker := Breaker(Clock())).failed(Miss("busy", "full", asked))
        pauses.add(breaker.seconds())
    assert all(least <= pause <= 1.5 * least for pause in pauses)
    assert len(pauses) > 10


def test_misses_are_remembered_for_a_minute() -> None:
    misses = Misses(clock := Clock())
    misses.add("a", miss := Miss("absent", "not there"))
    assert (misses.get("a"), misses.get("b")) == (miss, None)
    clock.now += PAUSE_SECONDS
    assert misses.get("a") is None


def test_memory_is_bounded() -> None:
    misses = Misses(Clock())
    for number in range(20_005):
        misses.add(str(number), Miss("absent", "not there"))
    assert len(misses._known) <= 10_000
