"""Timing under sustained load: each candidate alone for a while, at the clock that its own power allows.

In rounds (:mod:`~gemmill.profiler.measure.graph_timing`) candidates share a clock. A program that runs for seconds is
held by the power limit, and a kernel that spends less energy then runs at a higher clock: what counts is joules a call.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.graph_timing import K
from gemmill.profiler.measure.operands import torch
from gemmill.profiler.measure.telemetry import Reading, Telemetry, summarise
from gemmill.runtime.select.cost.energy import sustained_us
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.kernels.faults import needs_swap

HANDFUL = 8
"""Replays between two readings, of a millisecond or more each."""
OPEN = 0.02
"""How far behind the fastest so far a candidate may be and get another turn; wider after the first, whose order may
have been unlucky."""


LIKELY = MappingProxyType({"burst": 0.6, "moved": 0.06, "stages": 0.0, "stream": 0.0, "scale": 1.0, "watts": 700.0})
"""Roughly what was fitted on the H200 to measured bursts: for what is looked at where no model was fitted."""


def likely_kernels(problem: GemmProblem, us: Mapping[SlicedKernel, float], count: int) -> list[SlicedKernel]:
    """The kernels that may be the fastest alone, at most ``count``, the likeliest first.

    Args:
        problem: what they solve.
        us: microseconds of a brief look at each.
        count: of them.
    """
    if not us:
        return []
    configs = [parse_name(kernel.name) for kernel in us]
    sides = [needs_swap(config, problem) is True for config in configs]
    table = FeatureTable.of(zip(us, configs, sides, strict=True), DEFAULT_GPU)
    burst_us = np.array([*us.values()])
    times = sustained_us(LIKELY, burst_us, burst_us, table, problem, DEFAULT_GPU)
    kernels = [*us]
    return [kernels[i] for i in np.argsort(times, kind="stable")[:count].tolist()]


def turn(graph: Any, launches: int, seconds: float, telemetry: Telemetry) -> tuple[float, Reading]:
    """Microseconds of a launch and the GPU's state, medians over the second half of a turn.

    Replays are timed by the handful, so that what the host takes for a reading does not count.

    Args:
        graph: a captured graph.
        launches: launches in it.
        seconds: that it is replayed for.
        telemetry: of the GPU.
    """
    start, end = (torch().cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    readings: list[Reading] = []
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds or not times:
        start.record()
        for _ in range(HANDFUL):
            graph.replay()
        end.record()
        reading = telemetry.read()  # while the GPU is at work
        end.synchronize()
        if passed >= seconds / 2:
            times.append(start.elapsed_time(end) * 1000 / (HANDFUL * launches))
            readings.append(reading)
    return statistics.median(times), summarise(readings)


def time_turns(
    graphs: Mapping[K, Any],
    launches: int,
    seconds: float,
    turns: int,
    telemetry: Telemetry,
    always: frozenset[K] = frozenset(),
    before: Callable[[K], None] = lambda name: None,
) -> dict[K, tuple[list[float], Reading]]:
    """Microseconds of a launch, one for each turn that a candidate had, and the GPU's state under it.

    All have a first turn, in an order drawn anew each time, as the heat of one is the next one's. Those that are behind
    the fastest by more than :data:`OPEN`, twice as much after the first turn, have no further one.

    Args:
        graphs: captured graphs by candidate.
        launches: launches in each graph.
        seconds: of a turn.
        turns: of each, at most.
        telemetry: of the GPU.
        always: candidates that have all turns, such as baselines.
        before: told which candidate is about to run.
    """
    found: dict[K, list[tuple[float, Reading]]] = {name: [] for name in graphs}
    left, order = list(graphs), random.Random(0)
    for index in range(turns):
        order.shuffle(left)
        for name in left:
            before(name)
            found[name].append(turn(graphs[name], launches, seconds, telemetry))
        middle = {name: statistics.median(us for us, _ in found[name]) for name in left}
        left = still_open(middle, 2 * OPEN if index == 0 else OPEN, always)
    return {name: ([us for us, _ in own], summarise([reading for _, reading in own])) for name, own in found.items()}


def still_open(us: Mapping[K, float], behind: float, always: frozenset[K]) -> list[K]:
    """Candidates that may be the fastest yet: those that are not behind by more than a part of the least time."""
    limit = min(us.values(), default=0.0) * (1 + behind)
    return [name for name, value in us.items() if value <= limit or name in always]
