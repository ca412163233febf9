"""Problems drawn by a seed, in bursts: what is selected beside PyTorch's cuBLAS and cuBLASLt called directly.

Half are layers of public models, whole or shared out among two, four or eight GPUs, half of any extents; rows are
uniform in their logarithm from 1 to 16,384, a twentieth of the problems has extents that TMA cannot move. 8 bits are
K-major, as the others are half the time. Candidates go through operand sets in turn, in CUDA graphs of a millisecond
and in rounds; their results are compared. Ratios of rounds with quartiles; the furthest behind, and how many are behind
by more than their quartiles; results to a file (JSON). Needs an NVIDIA GPU and PyTorch.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

TYPES = ("bf16", "f16", "e4m3", "tf32", "s8")
MAJORS = (("k", "k"), ("k", "mn"), ("mn", "mn"), ("mn", "k"))
"""Of A and B; of 16 bits and tf32 drawn with the weights 5, 3, 1, 1."""
MOST_FLOPS, MOST_ELEMENTS = 2e12, 5e8
"""Of a problem, and of each of its matrices."""
OFF = {"e4m3": 0.05}
"""How far results may be apart: tensor cores keep few bits of sums of 8-bit floats, whose order differs."""
BEHIND, SHOWN = 0.95, 40
"""A ratio that is behind, and how many of the furthest are printed."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, parser_of

    from gemmill.runtime.registry import Registry

    parser = parser_of(__doc__)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="(all)")
    parser.add_argument("--problems", type=int, default=300, help="of each type (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (%(default)s)")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds to measure each type for (no end)")
    arguments = parser.parse_args()
    record, registry = Record("drawn", arguments, seed=arguments.seed), Registry()
    for dtype in arguments.types:
        problems = [*drawn(dtype, arguments.problems, arguments.seed)]
        kernels = {problem: registry.select(problem, objective="burst").kernel for problem in problems}
        registry.warm([*{kernel.name for kernel in kernels.values()}])  # in parallel
        end = time.monotonic() + arguments.budget
        rows: list[dict[str, Any]] = []
        for problem in problems:
            if time.monotonic() > end:
                break
            if row := measure(problem, kernels[problem], registry, arguments.rounds):
                rows.append(row)
                record.add(row)
        show(dtype, len(problems), rows)
    print(f"records: {record.path}")


def drawn(dtype: str, count: int, seed: int) -> Iterator[Any]:
    """So many problems of a type, none twice."""
    from benchmarks.common import problem_of
    from benchmarks.sustained import LAYERS

    found = random.Random(f"{dtype} {seed}")
    narrow = dtype in ("e4m3", "s8")
    seen: set[Any] = set()
    while len(seen) < count:
        a_major, b_major = MAJORS[0] if narrow else found.choices(MAJORS, (5, 3, 1, 1))[0]
        step = 16 if narrow else found.choices((64, 8, 1), (5, 4, 1))[0]
        if found.random() < 0.5:
            n, k = found.choice(LAYERS)
            n //= found.choice((1, 1, 1, 2, 4, 8))
        else:
            n, k = (int(2 ** found.uniform(6, 15)) for _ in range(2))
        m = int(2 ** found.uniform(0, 14))
        n, k = n // step * step, k // step * step
        if a_major == "mn":
            m = max(m // step, 2) * step  # one row alone would be of either layout
        problem = problem_of(dtype, m, n, k, a_major, b_major)
        sizes = (problem.m * problem.k, problem.n * problem.k, problem.m * problem.n)
        if problem.flops <= MOST_FLOPS and max(sizes) <= MOST_ELEMENTS and problem not in seen:
            seen.add(problem)
            yield problem


def measure(problem: Any, kernel: Any, registry: Any, rounds: int) -> dict[str, Any] | None:
    """What is selected and the baselines on one problem; None where there is no baseline."""
    import torch
    from benchmarks.common import baseline_graphs, check, launch_of, ratios

    from gemmill.profiler.measure.graph_timing import capture, launches_per_replay, time_rounds
    from gemmill.profiler.measure.operands import make_operands

    operands = make_operands(problem, 0)
    sets, count = len(operands), launches_per_replay(problem, len(operands))
    stream = torch.cuda.Stream()
    name = str(kernel)
    graphs = {name: capture(launch_of(problem, operands, kernel, registry), sets, count, stream)}
    ours = operands[0].d.clone()
    graphs |= baseline_graphs(problem, operands, count, stream)
    if len(graphs) == 1:
        return None
    check(str(problem), ours.double(), operands[0].d.double(), OFF.get(problem.a_dtype, 0.01))
    time_rounds(graphs, count, 1)  # until clocks have settled
    us = time_rounds(graphs, count, rounds)
    against = {other: ratios(values, us[name]) for other, values in us.items() if other != name}
    faster = min(against, key=lambda other: statistics.median(us[other]))
    medians = {x: statistics.median(values) for x, values in us.items()}
    return {"problem": str(problem), "kernel": name, "us": medians, "ratios": against, "faster": faster}


def show(dtype: str, asked: int, rows: Sequence[dict[str, Any]]) -> None:
    """Print the furthest behind the faster baseline, and the figures of a type."""
    rows = sorted(rows, key=lambda row: row["ratios"][row["faster"]][0])
    for row in rows[:SHOWN]:
        middle, low, high = row["ratios"][row["faster"]]
        print(f"{row['problem']:32} {middle:.3f} ({low:.3f} to {high:.3f}) of {row['faster']:8} {row['kernel']}")
    for what in ("cublas", "faster"):
        found = (row["ratios"].get(row["faster"] if what == "faster" else what) for row in rows)
        if own := sorted(ratio for ratio in found if ratio):
            mean = statistics.geometric_mean([middle for middle, _, _ in own])
            behind = sum(high < BEHIND for _, _, high in own) / len(own)
            told = f"{mean:.4f}, least {own[0][0]:.3f}, {behind:.1%} below {BEHIND} by more than quartiles"
            print(f"{dtype}, {len(own)} of {asked} problems, of {what}: {told}", flush=True)
