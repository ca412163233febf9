"""Timing of launches inside CUDA graphs, candidates interleaved in rounds.

Each candidate's launches, one for every operand set in turn, are captured once into a graph. A round replays every
candidate's graph once, so clocks, power and temperature drift alike for all of them; in an order drawn anew, since what
follows a candidate that draws little power finds a higher clock.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import set_bytes, torch
from gemmill.runtime.launch_times import no_collection

REPLAY_US = 1000.0
"""Least time a replay should take: far above the microseconds that a graph launch costs and events resolve."""
ROUNDS = 32
"""Rounds in which what figures are of is timed, unless a caller or a budget says otherwise; a record says how many."""
PEAK_FLOPS = 800e12
"""Rate of 16-bit tensor cores, for the estimate of how many launches fill a replay; 8 bits have twice as much, tf32
half."""
FMA_FLOPS = 67e12
"""The same of f32 and f64."""
PEAK_BYTES = 4e12
"""DRAM bandwidth, for the same estimate."""

TUNING_ROUNDS = 5
"""Replays of each launch of which the fastest is sought."""

K = TypeVar("K")
"""What a candidate is called."""
Launch = Callable[[int], None]
"""Launches a kernel on torch's current stream, on the operand set of this index."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one launch, over a number of replays."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""
    samples: int
    """Replays timed, one a round."""
    launches: int = 1
    """Launches in each."""


def launches_per_replay(problem: GemmProblem, sets: int) -> int:
    """Launches in a graph: whole turns through the operand sets that take at least :data:`REPLAY_US`."""
    return math.ceil(REPLAY_US / (_least_us(problem) * sets)) * sets


def replay_seconds(problem: GemmProblem, sets: int) -> float:
    """Seconds that a replay of :func:`launches_per_replay` takes at least."""
    return launches_per_replay(problem, sets) * _least_us(problem) / 1e6


def _least_us(problem: GemmProblem) -> float:
    """Microseconds that a launch takes at least."""
    bits = max(DTYPES[dtype].bits for dtype in (problem.a_dtype, problem.b_dtype))
    peak = FMA_FLOPS if problem.a_dtype in ("f32", "f64") else PEAK_FLOPS * 16 / bits
    return 2.0 + 1e6 * max(problem.flops / peak, set_bytes(problem) / PEAK_BYTES)


def capture(launch: Launch, sets: int, launches: int, stream: Any) -> Any:
    """A CUDA graph of ``launches`` launches in turn over the operand sets, replayed once.

    Args:
        launch: the candidate.
        sets: operand sets it rotates over.
        launches: launches in the graph.
        stream: a torch stream for captures. One for all: cuBLAS keeps a workspace for each stream it has seen.
    """
    graph = torch().cuda.CUDAGraph()
    stream.wait_stream(torch().cuda.current_stream())
    # capture_begin rather than torch.cuda.graph: that collects garbage and empties torch's cache, 0.1 s each time.
    with torch().cuda.stream(stream), no_collection():
        launch(0)  # loads and allocates what cannot be loaded or allocated during a capture
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for index in range(launches):
                launch(index % sets)
        except BaseException:
            with suppress(RuntimeError):  # which would say that the capture broke, and not why
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
    """Replay every graph once a round, in random order, and return microseconds of a launch, one for each round.

    Args:
        graphs: captured graphs by candidate.
        launches: launches in each graph.
        rounds: replays of each.
        before: told which candidate is about to run.
        after_round: told the index of the round that is over, while the GPU is still warm.
    """
    start, end = (torch().cuda.Event(enable_timing=True) for _ in range(2))
    samples: dict[K, list[float]] = {name: [] for name in graphs}
    names, order = list(graphs), random.Random(0)
    for index in range(rounds):
        order.shuffle(names)
        for name in names:
            before(name)
            start.record()
            graphs[name].replay()
            end.record()
            # A fault must show here, while it is known whose it is.
            end.synchronize()
            samples[name].append(start.elapsed_time(end) * 1000.0 / launches)
        after_round(index)
    return samples


def fastest(launches: Sequence[Launch], problem: GemmProblem, sets: int) -> int:
    """Which of some launches solves a problem in the least time, by a few interleaved rounds over all operand sets."""
    each, stream = launches_per_replay(problem, sets), torch().cuda.Stream()
    graphs = {index: capture(launch, sets, each, stream) for index, launch in enumerate(launches)}
    samples = time_rounds(graphs, each, TUNING_ROUNDS)
    return int(min(samples, key=lambda index: statistics.median(samples[index])))


def summarise(samples: Sequence[float], launches: int = 1) -> Timing:
    """Median and quartiles of samples, each the mean of so many launches. Needs at least one sample."""
    if len(samples) == 1:
        return Timing(samples[0], samples[0], samples[0], 1, launches)
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(middle, low, high, len(samples), launches)
