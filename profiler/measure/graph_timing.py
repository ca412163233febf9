"""Timing of launches inside CUDA graphs, with candidates interleaved in rounds.

The launches of each candidate, which rotate over the operand sets, are captured once into a graph. A round replays each
graph once, so that drifts of clock, power and temperature affect all candidates equally. The order is random in each
round, and the GPU pauses before each replay: without a pause, the power limit lowers the clock within a few replays,
and other kernels are the fastest.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import set_bytes, torch
from gemmill.runtime.launch_times import no_collection

REPLAY_US = 1000.0
"""Minimum time of a replay: far above the launch overhead of a graph and the resolution of events."""
PAUSE_S = 0.005
"""Seconds without work before each replay. Replays then run at full clock, as they do after pauses of 20 ms; without a
pause, 26 mostly large GEMMs took 1.16 times as long with cuBLAS on an H200 (median), and at most 1.31 times with any
kernel."""
ROUNDS = 9
"""Default number of rounds of final timings. Records contain the actual number."""
PEAK_FLOPS = 800e12
"""Rate of 16-bit tensor cores, to estimate how many launches fill a replay. 8-bit types have twice the rate, tf32
half."""
FMA_FLOPS = 67e12
"""Rate of f32 and f64, for the same estimate."""
PEAK_BYTES = 4e12
"""DRAM bandwidth, for the same estimate."""

TUNING_ROUNDS = 5
"""Replays of each launch in :func:`fastest`."""

K = TypeVar("K")
"""Identifier of a candidate."""
Launch = Callable[[int], None]
"""Launches a kernel on torch's current stream with the operand set of the given index."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one launch, over a number of replays."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""
    samples: int
    """Number of timed replays, one per round."""
    launches: int = 1
    """Number of launches in each replay."""


def launches_per_replay(problem: GemmProblem, sets: int) -> int:
    """Number of launches in a graph: a multiple of the operand sets that takes at least :data:`REPLAY_US`."""
    return math.ceil(REPLAY_US / (_least_us(problem) * sets)) * sets


def replay_seconds(problem: GemmProblem, sets: int) -> float:
    """Minimum time, in seconds, of a replay of :func:`launches_per_replay`."""
    return launches_per_replay(problem, sets) * _least_us(problem) / 1e6


def _least_us(problem: GemmProblem) -> float:
    """Minimum time, in microseconds, of a launch."""
    multiplied = problem.of_components
    bits = max(DTYPES[dtype].bits for dtype in (multiplied.a_dtype, multiplied.b_dtype))
    peak = FMA_FLOPS if problem.a_dtype in ("f32", "f64") else PEAK_FLOPS * 16 / bits
    return 2.0 + 1e6 * max(problem.products * multiplied.flops / peak, set_bytes(problem) / PEAK_BYTES)


def capture(launch: Launch, sets: int, launches: int, stream: Any) -> Any:
    """Capture launches, which rotate over the operand sets, in a CUDA graph, and replay it once.

    Args:
        launch: the candidate.
        sets: number of operand sets.
        launches: number of launches in the graph.
        stream: a torch stream for captures. Use one stream for all, since cuBLAS keeps a workspace for each stream.
    """
    graph = torch().cuda.CUDAGraph()
    stream.wait_stream(torch().cuda.current_stream())
    # capture_begin rather than torch.cuda.graph: that collects garbage and empties torch's cache, 0.1 s each time.
    with torch().cuda.stream(stream), no_collection():
        launch(0)  # loads the module and allocates memory, which a capture does not allow
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for index in range(launches):
                launch(index % sets)
        except BaseException:
            with suppress(RuntimeError):  # its error would hide the cause
                graph.capture_end()
            raise
        graph.capture_end()
    graph.replay()
    torch().cuda.synchronize()
    return graph


def time_rounds(
    graphs: Mapping[K, Any],
    launches: int,
    rounds: int,
    before: Callable[[K], None] = lambda name: None,
    after_round: Callable[[int], None] = lambda index: None,
) -> dict[K, list[float]]:
    """Replay each graph once per round, in random order and at full clock; returns the microseconds of a launch in each
    round.

    Args:
        graphs: captured graphs by candidate.
        launches: number of launches in each graph.
        rounds: number of replays of each graph.
        before: called with each candidate before it runs.
        after_round: called with the index of each round after it, before the GPU cools down.
    """
    start, end = (torch().cuda.Event(enable_timing=True) for _ in range(2))
    samples: dict[K, list[float]] = {name: [] for name in graphs}
    names, order = list(graphs), random.Random(0)
    for index in range(rounds):
        order.shuffle(names)
        for name in names:
            before(name)
            time.sleep(PAUSE_S)
            start.record()
            graphs[name].replay()
            end.record()
            # Wait here, so that a fault is attributed to this candidate.
            end.synchronize()
            samples[name].append(start.elapsed_time(end) * 1000.0 / launches)
        after_round(index)
    return samples


def fastest(launches: Sequence[Launch], problem: GemmProblem, sets: int) -> int:
    """Index of the fastest launch, timed in a few interleaved rounds over all operand sets."""
    launches_each, stream = launches_per_replay(problem, sets), torch().cuda.Stream()
    graphs = {index: capture(launch, sets, launches_each, stream) for index, launch in enumerate(launches)}
    samples = time_rounds(graphs, launches_each, TUNING_ROUNDS)
    return int(min(samples, key=lambda index: statistics.median(samples[index])))


def summarise(samples: Sequence[float], launches: int = 1) -> Timing:
    """Median and quartiles of samples, each the mean of ``launches`` launches. Needs at least one sample."""
    if len(samples) == 1:
        return Timing(samples[0], samples[0], samples[0], 1, launches)
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(middle, low, high, len(samples), launches)
