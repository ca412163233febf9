"""Large GEMMs in rounds and in bursts, beside cuBLAS.

In rounds, which all else is measured in, candidates take turns of a millisecond and share a clock. In a burst one
candidate runs alone for longer, and finds the clock that its own power allows. Of each problem the kernels that the
selector ranks first, and cuBLAS as PyTorch calls it (of fp8 with block scales: with one scale a tensor); ratios to it
with quartiles over rounds, and over bursts. The same goes to ``profiler/results`` (JSON). Needs an NVIDIA GPU and
PyTorch.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

TYPES = {"bf16": ("f32", "bf16"), "e4m3": ("f32", "bf16"), "e4m3-scaled": ("f32", "bf16"), "s8": ("s32", "s32")}
"""Type of the sums and of D, by that of A and B."""
SHAPES = ((4096, 7168, 16384), (8192, 8192, 8192), (4096, 14336, 4096))
"""M, N, K."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES), help="(all)")
    parser.add_argument("--kernels", type=int, default=5, help="kernels of each problem (%(default)s)")
    parser.add_argument("--bursts", type=int, default=5, help="bursts of each candidate (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a burst, whose second half counts (%(default)s)")
    add_options(parser, rounds=40)
    arguments = parser.parse_args()
    record = Record("bursts", arguments, bursts=arguments.bursts, seconds=arguments.seconds)
    for dtype in arguments.types:
        for shape in SHAPES:
            rows = measure(dtype, shape, arguments)
            record.add(*rows)
            print(f"{dtype} {rows[0]['problem']}: of cuBLAS in rounds; in bursts; TFLOP/s, MHz and W there", flush=True)
            for row in rows:
                spreads = "  ".join("{:.3f} ({:.3f} to {:.3f})".format(*row[how]) for how in ("rounds", "bursts"))
                print(
                    f"  {spreads}  {row['tflops']:5.0f} {row['mhz']:5} {row['watts']:4.0f}  {row['name']}", flush=True
                )
    print(f"records: {record.path}")


def measure(dtype: str, shape: tuple[int, int, int], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each candidate of one problem, cuBLAS first."""
    import torch
    from benchmarks.common import in_turn

    from gemmill.library.problem import GemmProblem
    from gemmill.profiler.baseline import BASELINES, CUBLAS, PER_TENSOR
    from gemmill.profiler.operands import make_operands, natural_alpha, plan_options
    from gemmill.profiler.timing import capture, launches_per_replay, time_rounds
    from gemmill.runtime.api import plan
    from gemmill.runtime.registry import Registry

    sums: Any
    d: Any
    sums, d = TYPES[dtype]
    element: Any = dtype.removesuffix("-scaled")
    problem = GemmProblem.packed((*shape, 1), (element, "k"), (element, "k"), sums, None, (d, "n"))
    if element != dtype:
        problem = replace(problem, a_scale="1x128", b_scale="128x128")
    operands = make_operands(problem, 0)
    sets, count = len(operands), launches_per_replay(problem, len(operands))
    registry, stream, alpha = Registry(), torch.cuda.Stream(), natural_alpha(problem)

    def planned(kernel: str | None, x: Any) -> Any:
        options = plan_options(problem, x)
        return plan(x.a, x.b, out=x.d, alpha=alpha, registry=registry, kernel=kernel, **options)

    choice = planned(None, operands[0]).choice
    assert choice is not None
    names = [choice.name, *(runner for runner, _ in choice.runners_up)][: arguments.kernels]
    registry.warm(names)
    baseline = BASELINES[PER_TENSOR if element != dtype else CUBLAS](problem, operands)
    assert baseline is not None
    graphs = {CUBLAS: capture(baseline.launch, sets, count, stream)}
    graphs |= {name: capture(in_turn([planned(name, x) for x in operands]), sets, count, stream) for name in names}
    time_rounds(graphs, count, 10)  # until clocks have settled
    rounds = time_rounds(graphs, count, arguments.rounds)
    bursts = in_bursts(graphs, count, arguments.bursts, arguments.seconds)
    return [
        {
            "type": dtype,
            "problem": "x".join(map(str, shape)),
            "name": name,
            "rounds": ratios(rounds[CUBLAS], rounds[name]),
            "bursts": ratios([us for us, _, _ in bursts[CUBLAS]], [us for us, _, _ in bursts[name]]),
            "tflops": problem.flops / statistics.median(us for us, _, _ in bursts[name]) / 1e6,
            "mhz": round(statistics.median(mhz for _, mhz, _ in bursts[name])),
            "watts": statistics.median(watts for _, _, watts in bursts[name]),
        }
        for name in graphs
    ]


def ratios(reference: Sequence[float], candidate: Sequence[float]) -> tuple[float, float, float]:
    """Median and quartiles of how much faster a candidate is, round by round."""
    low, middle, high = statistics.quantiles(
        [before / us for before, us in zip(reference, candidate, strict=True)], n=4, method="inclusive"
    )
    return middle, low, high


def in_bursts(
    graphs: Mapping[str, Any], launches: int, bursts: int, seconds: float
) -> dict[str, list[tuple[float, int, float]]]:
    """Microseconds of a launch, MHz and W in the second half of each burst, in an order drawn anew each time."""
    import torch

    from gemmill.profiler.telemetry import open_telemetry

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    telemetry = open_telemetry(f"GPU-{properties.uuid}")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found: dict[str, list[tuple[float, int, float]]] = {name: [] for name in graphs}
    names, order = list(graphs), random.Random(0)
    for _ in range(bursts):
        order.shuffle(names)
        for name in names:
            graph, replays, readings = graphs[name], 0, []
            begun = time.monotonic()
            while time.monotonic() - begun < seconds / 2:
                graph.replay()
                torch.cuda.synchronize()
            start.record()
            begun = time.monotonic()
            while time.monotonic() - begun < seconds / 2:
                for _ in range(8):  # the GPU has work while the host reads
                    graph.replay()
                replays += 8
                readings.append(telemetry.read())
                torch.cuda.synchronize()
            end.record()
            end.synchronize()
            us = start.elapsed_time(end) * 1000 / (replays * launches)
            found[name].append(
                (us, int(statistics.median(r.sm_mhz for r in readings)), statistics.median(r.watts for r in readings))
            )
    return found


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
