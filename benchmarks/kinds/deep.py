"""A long K and few rows and columns: what is selected, beside the rate of a copy, in one run.

Every type and layout. A and B come from DRAM and are read once at best: bytes of A, B and D a second as a part of what
a copy on the device moves, which counts both directions. Rounds in an order drawn anew. Results to a file (JSON).
Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/decompositions.md, "A long K beside a copy".
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

EXTENTS = ((16, 16), (64, 64), (128, 128), (16, 512), (512, 16), (16, 2048))
"""M and N."""
OPERAND_BYTES = 128 << 20
"""Of A and B together: K is the power of two that comes nearest from below."""
ASKED = 0.8


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options, copy_gbps, problem_of
    from benchmarks.kinds.drawn import MAJORS, TYPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="(all)")
    add_options(parser)
    parser.set_defaults(rounds=9)
    arguments = parser.parse_args()

    import torch

    from gemmill.library.dtypes import DTYPES
    from gemmill.runtime.registry import Registry

    registry = Registry()
    problems = [
        problem_of(dtype, m, n, 1 << (OPERAND_BYTES * 8 // DTYPES[dtype].bits // (m + n)).bit_length() - 1, *majors)
        for dtype in arguments.types
        for majors in MAJORS
        for m, n in EXTENTS
    ]
    chosen = {problem: registry.select(problem).name for problem in problems}
    registry.warm(sorted({*chosen.values()}))  # in parallel
    copy = copy_gbps(torch.cuda.Stream(), arguments.rounds)
    print(f"{torch.cuda.get_device_name()}; copy {copy:.0f} GB/s")
    record = Record("long-k", arguments, copy_gbps=copy)
    parts: dict[str, list[list[float]]] = {}
    for problem in problems:
        row = measure(problem, chosen[problem], registry, copy, arguments.rounds)
        record.add(row)
        parts.setdefault(problem.a_dtype, []).append(row["part"])
        low, middle, high = row["part"]
        print(f"{row['problem']:28} {middle:.3f} ({low:.3f} to {high:.3f}) of a copy", flush=True)
    for dtype, own in parts.items():
        mean, least = statistics.geometric_mean([x[1] for x in own]), min(x[1] for x in own)
        below = sum(high < ASKED for _, _, high in own)
        print(f"{dtype}, {len(own)} problems: {mean:.3f} of a copy, least {least:.3f}, {below} below {ASKED}")
    print(f"records: {record.path}")


def measure(problem: Any, name: str, registry: Any, copy: float, rounds: int) -> dict[str, Any]:
    """What is selected, on one problem."""
    import torch
    from benchmarks.common import launch_of

    from gemmill.profiler.measure.operands import make_operands, set_bytes
    from gemmill.profiler.measure.timing import capture, launches_per_replay, summarise, time_rounds

    operands = make_operands(problem, 0)
    sets, count = len(operands), launches_per_replay(problem, len(operands))
    graph = {name: capture(launch_of(problem, operands, name, registry), sets, count, torch.cuda.Stream())}
    time_rounds(graph, count, 1)  # until clocks have settled
    us = summarise(time_rounds(graph, count, rounds)[name])
    parts = [set_bytes(problem) / 1e3 / x / copy for x in (us.high, us.median, us.low)]
    return {"problem": str(problem), "kernel": name, "us": us.median, "part": parts}


if __name__ == "__main__":
    main()
