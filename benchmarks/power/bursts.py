"""Large GEMMs in rounds and in bursts, beside cuBLAS.

In rounds, which all else is measured in, candidates take turns of a millisecond and share a clock. In a burst one
candidate runs alone for longer, and finds the clock that its own power allows. Of each problem the kernels that the
selector ranks first, and cuBLAS as PyTorch calls it (of fp8 with block scales: with one scale a tensor); ratios to it
with quartiles over rounds, and over bursts. The same goes to a file (JSON). Needs an NVIDIA GPU and
PyTorch.

Reproduces docs/performance/layers.md, "Rounds and bursts".
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

TYPES = ("bf16", "e4m3", "e4m3-scaled", "s8")
"""Of A and B; with scales in blocks."""
SHAPES = ((4096, 7168, 16384), (8192, 8192, 8192), (4096, 14336, 4096))
"""M, N, K."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="(all)")
    parser.add_argument("--kernels", type=int, default=5, help="kernels of each problem (%(default)s)")
    parser.add_argument("--bursts", type=int, default=5, help="bursts of each candidate (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a burst, whose second half counts (%(default)s)")
    add_options(parser)
    arguments = parser.parse_args()
    record = Record("bursts", arguments, bursts=arguments.bursts, seconds=arguments.seconds)
    for dtype in arguments.types:
        for shape in SHAPES:
            rows = measure(dtype, shape, arguments, record.telemetry)
            record.add(*rows)
            print(f"{dtype} {rows[0]['problem']}: of cuBLAS in rounds; in bursts; TFLOP/s, MHz and W there", flush=True)
            for row in rows:
                spreads = "  ".join("{:.3f} ({:.3f} to {:.3f})".format(*row[how]) for how in ("rounds", "bursts"))
                print(
                    f"  {spreads}  {row['tflops']:5.0f} {row['mhz']:5} {row['watts']:4.0f}  {row['name']}", flush=True
                )
    print(f"records: {record.path}")


def measure(
    dtype: str, shape: tuple[int, int, int], arguments: argparse.Namespace, telemetry: Any
) -> list[dict[str, Any]]:
    """A row for each candidate of one problem, cuBLAS first."""
    import torch
    from benchmarks.common import problem_of, ranked_launches, ratios

    from gemmill.profiler.baselines.baseline import BASELINES, CUBLAS, PER_TENSOR
    from gemmill.profiler.measure.operands import make_operands
    from gemmill.profiler.measure.sustained import turn
    from gemmill.profiler.measure.telemetry import summarise as summarise_readings
    from gemmill.profiler.measure.timing import capture, launches_per_replay, time_rounds

    problem = problem_of(dtype, *shape)
    operands = make_operands(problem, 0)
    sets, count = len(operands), launches_per_replay(problem, len(operands))
    baseline = BASELINES[CUBLAS if problem.a_scale == "none" else PER_TENSOR](problem, operands)
    assert baseline is not None
    launches = {CUBLAS: baseline.launch, **ranked_launches(problem, operands, arguments.kernels)}
    stream = torch.cuda.Stream()
    graphs = {name: capture(launch, sets, count, stream) for name, launch in launches.items()}
    time_rounds(graphs, count, 10)  # until clocks have settled
    rounds = time_rounds(graphs, count, arguments.rounds)
    bursts: dict[str, list[tuple[float, Any]]] = {name: [] for name in graphs}
    names, order = list(graphs), random.Random(0)
    for _ in range(arguments.bursts):
        order.shuffle(names)
        for name in names:
            bursts[name].append(turn(graphs[name], count, arguments.seconds, telemetry))
    us = {name: [us for us, _ in own] for name, own in bursts.items()}
    readings = {name: summarise_readings([reading for _, reading in own]) for name, own in bursts.items()}
    return [
        {
            "type": dtype,
            "problem": "x".join(map(str, shape)),
            "name": name,
            "rounds": ratios(rounds[CUBLAS], rounds[name]),
            "bursts": ratios(us[CUBLAS], us[name]),
            "tflops": problem.flops / statistics.median(us[name]) / 1e6,
            "mhz": readings[name].sm_mhz,
            "watts": readings[name].watts,
        }
        for name in graphs
    ]


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
