"""Random problems in bursts: the selected kernel relative to cuBLAS through PyTorch, and to cuBLASLt.

Half of the problems are layers of public models, whole or divided among two, four or eight GPUs; the others have random
extents. The logarithm of M is uniform from 1 to 16,384. One problem in twenty has extents that TMA does not support.
8-bit operands are K-major, and so are half of the others. Candidates run in CUDA graphs of a millisecond, which rotate
over operand sets, in interleaved rounds; their results are compared. The program prints ratios with quartiles over
rounds, the slowest problems, and how many are slower by more than their quartiles; results are written as JSON. Needs
an NVIDIA GPU and PyTorch.
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
"""Majorness of A and B; for 16-bit types and tf32 drawn with the weights 5, 3, 1, 1."""
MOST_FLOPS, MOST_ELEMENTS = 2e12, 5e8
"""Maximum FLOP of a problem, and maximum elements of each matrix."""
OFF = {"e4m3": 0.05}
"""Maximum difference of results; tensor cores have few bits for sums of fp8, and the order of additions differs."""
BEHIND, SHOWN = 0.95, 40
"""The ratio below which a problem counts as slower, and the number of slowest problems to print."""


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    from benchmarks.common import Record, parser_of

    from gemmill.runtime.registry import Registry

    parser = parser_of(__doc__)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="(all)")
    parser.add_argument("--problems", type=int, default=300, help="problems of each type (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for each type (no limit)")
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
    """Distinct random problems of a type."""
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
            m = max(m // step, 2) * step  # a single row has both layouts
        problem = problem_of(dtype, m, n, k, a_major, b_major)
        sizes = (problem.m * problem.k, problem.n * problem.k, problem.m * problem.n)
        if problem.flops <= MOST_FLOPS and max(sizes) <= MOST_ELEMENTS and problem not in seen:
            seen.add(problem)
            yield problem


def measure(problem: Any, kernel: Any, registry: Any, rounds: int) -> dict[str, Any] | None:
    """Measure the selected kernel and the baselines on one problem; None without any baseline."""
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
    time_rounds(graphs, count, 1)  # lets the clocks settle
    us = time_rounds(graphs, count, rounds)
    against = {other: ratios(values, us[name]) for other, values in us.items() if other != name}
    faster = min(against, key=lambda other: statistics.median(us[other]))
    medians = {x: statistics.median(values) for x, values in us.items()}
    return {"problem": str(problem), "kernel": name, "us": medians, "ratios": against, "faster": faster}


def show(dtype: str, asked: int, rows: Sequence[dict[str, Any]]) -> None:
    """Print the slowest problems relative to the faster baseline, and the figures of a type."""
    rows = sorted(rows, key=lambda row: row["ratios"][row["faster"]][0])
    for row in rows[:SHOWN]:
        middle, low, high = row["ratios"][row["faster"]]
        ratio = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        print(f"{row['problem']:32} {ratio} relative to {row['faster']:8} {row['kernel']}")
    for what in ("cublas", "faster"):
        found = (row["ratios"].get(row["faster"] if what == "faster" else what) for row in rows)
        if own := sorted(ratio for ratio in found if ratio):
            mean = statistics.geometric_mean([middle for middle, _, _ in own])
            behind = sum(high < BEHIND for _, _, high in own) / len(own)
            other = "the faster of both" if what == "faster" else what
            told = f"geometric mean {mean:.4f}, worst {own[0][0]:.3f}, {behind:.1%} with upper quartile below {BEHIND}"
            print(f"{dtype}, {len(own)} of {asked} problems, relative to {other}: {told}", flush=True)
