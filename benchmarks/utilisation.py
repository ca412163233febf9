"""How much of the tensor cores' time large GEMMs use: kernels beside WGMMAs alone, in the same rounds.

``gemmill roofline`` measures what WGMMAs sustain by themselves, at the clock that their power allows. Here a launch of
them, of about as many operations as the problem, is one more candidate: all share a clock, and the ratio of their rates
says what part of the time the tensor cores work. Of each problem the fastest of the kernels that the selector ranks
first, its ratio with quartiles over rounds; the same goes to a file (JSON). Needs an NVIDIA GPU and
PyTorch.

Reproduces docs/performance/method.md, "Peak rates".
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

TYPES = ("bf16", "f16", "e4m3", "s8")
"""Of A and B."""
SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 8448, 8192), (8448, 8192, 8192), (8192, 8448, 16384))
"""M, N, K; most are whole waves of large tiles on 132 SMs."""
STEPS = 64
"""Stages that a tile of the kernel of a peak rate sums, as in ``gemmill roofline``."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=5, help="kernels of each problem (%(default)s)")
    add_options(parser)
    arguments = parser.parse_args()
    record = Record("utilisation", arguments)
    for dtype in TYPES:
        for shape in SHAPES:
            row = measure(dtype, shape, arguments.kernels, arguments.rounds)
            record.add(row)
            print(
                f"{dtype:5} {row['problem']:16} {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})  "
                f"{row['tflops']:.0f} of {row['peak_tflops']:.0f} TFLOP/s  {row['kernel']}",
                flush=True,
            )
    print(f"records: {record.path}")


def measure(dtype: Any, shape: tuple[int, int, int], kernels: int, rounds: int) -> dict[str, Any]:
    """The fastest kernel's rate over that of WGMMAs alone, on one problem."""
    import torch
    from benchmarks.common import in_turn, ranked_launches

    from gemmill.library.dtypes import default_accumulator, default_output
    from gemmill.library.problem import GemmProblem
    from gemmill.profiler.measure.operands import fill_random, make_operands
    from gemmill.profiler.measure.peak_rates import PeakRateLaunch
    from gemmill.profiler.measure.timing import capture, launches_per_replay, time_rounds

    sums, d = default_accumulator(dtype), default_output(dtype)
    problem = GemmProblem(*shape, a=dtype, accumulator=sums, d=d)
    operands = make_operands(problem, 0)
    sets, count = len(operands), launches_per_replay(problem, len(operands))
    launches, stream = ranked_launches(problem, operands, kernels), torch.cuda.Stream()
    graphs = {name: capture(launch, sets, count, stream) for name, launch in launches.items()}
    fill = partial(fill_random, dtype=dtype, generator=torch.Generator(device="cuda").manual_seed(0))
    peak = PeakRateLaunch(dtype, 1, STEPS, fill)
    peak.repeat(max(1, round(problem.flops / peak.flops)))
    graphs["peak"] = capture(in_turn([peak]), 1, count, stream)
    time_rounds(graphs, count, 10)  # until clocks have settled
    times = time_rounds(graphs, count, rounds)
    best = min(launches, key=lambda name: statistics.median(times[name]))
    part = problem.flops / peak.flops
    ratios = [part * alone / us for alone, us in zip(times["peak"], times[best], strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    return {
        "dtype": dtype,
        "problem": "x".join(map(str, shape)),
        "ratio": ratio,
        "low": low,
        "high": high,
        "kernel": best,
        "tflops": problem.flops / statistics.median(times[best]) / 1e6,
        "peak_tflops": peak.flops / statistics.median(times["peak"]) / 1e6,
    }


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
