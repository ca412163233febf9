"""Timing under sustained load: each candidate runs alone, at the clock that its power allows.

In interleaved rounds (:mod:`~gemmill.profiler.measure.graph_timing`), all candidates run at the same clock. In a
program that runs for seconds, the power limit lowers the clock, and a kernel that needs less energy per call runs at a
higher clock.
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
"""Replays per reading; each takes at least a millisecond."""
OPEN = 0.02
"""Candidates slower than the fastest by more than this fraction get no further turn. Twice as much after the first
turn, since its order affects the times."""


LIKELY = MappingProxyType({"burst": 0.6, "moved": 0.06, "stages": 0.0, "stream": 0.0, "scale": 1.0, "watts": 700.0})
"""Approximate parameters of the energy model, fitted to measurements on the H200; used before a model is fitted."""


def likely_kernels(problem: GemmProblem, us: Mapping[SlicedKernel, float], count: int) -> list[SlicedKernel]:
    """The kernels that are predicted to be the fastest under sustained load, the fastest first.

    Args:
        problem: the problem.
        us: microseconds of each kernel in the screening stage.
        count: maximum number of kernels.
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
    """Microseconds of a launch and the state of the GPU: medians over the second half of a turn.

    Each sample times :data:`HANDFUL` replays, so that the host's reading of clocks and power does not count.

    Args:
        graph: a captured graph.
        launches: number of launches in the graph.
        seconds: length of the turn.
        telemetry: telemetry of the GPU.
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
        reading = telemetry.read()  # while the GPU is busy
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
    """Microseconds of a launch in each turn of a candidate, and the state of the GPU.

    The order is random, since each candidate heats the GPU for the next. All candidates have a first turn. Those slower
    than the fastest by more than :data:`OPEN`, twice as much after the first turn, get no further turn.

    Args:
        graphs: captured graphs by candidate.
        launches: number of launches in each graph.
        seconds: length of a turn.
        turns: maximum number of turns of each candidate.
        telemetry: telemetry of the GPU.
        always: candidates that get all turns, such as baselines.
        before: called with each candidate before it runs.
    """
    results: dict[K, list[tuple[float, Reading]]] = {name: [] for name in graphs}
    candidates, order = list(graphs), random.Random(0)
    for index in range(turns):
        order.shuffle(candidates)
        for name in candidates:
            before(name)
            results[name].append(turn(graphs[name], launches, seconds, telemetry))
        middle = {name: statistics.median(us for us, _ in results[name]) for name in candidates}
        candidates = still_open(middle, 2 * OPEN if index == 0 else OPEN, always)
    return {
        name: ([us for us, _ in samples], summarise([reading for _, reading in samples]))
        for name, samples in results.items()
    }


def still_open(us: Mapping[K, float], behind: float, always: frozenset[K]) -> list[K]:
    """Candidates that may still be the fastest: those slower than the fastest by at most the fraction ``behind``."""
    limit = min(us.values(), default=0.0) * (1 + behind)
    return [name for name, value in us.items() if value <= limit or name in always]
