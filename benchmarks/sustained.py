"""Sustained load: the kernels selected for sustained load and for bursts, relative to cuBLAS, each running alone.

Problems are random layers of public models with 1,024 to 16,384 tokens, forward and gradients, which the power limit
throttles according to the model. In a turn, one candidate runs for a fraction of a second, of which the second half is
timed. The order is random in each round. cuBLAS is the faster of cuBLAS through PyTorch and cuBLASLt, if installed; for
block scaling, it is cuBLASLt. The program prints ratios with quartiles over turns, and joules per launch; results are
written as JSON. Needs an NVIDIA GPU and PyTorch, and for block scaling gemmill's extra cublaslt.

Reproduces docs/performance/sustained.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LAYERS = (
    *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (5120, 5120), (13824, 5120), (5120, 13824)),
    *((8192, 8192), (10240, 8192), (28672, 8192), (8192, 28672), (3584, 3584), (4608, 3584), (37888, 3584)),
    *((3584, 18944), (2048, 2048), (8192, 2048), (2048, 8192), (3072, 3072), (16384, 3072), (3072, 8192)),
    *((7168, 2048), (2112, 7168), (7168, 16384), (4096, 7168), (24576, 1536), (4608, 4608), (18432, 4608)),
    *((4608, 18432), (1024, 4096), (6400, 1600), (1600, 6400), (128256, 4096), (152064, 3584), (32000, 4096)),
)
"""N and K of weights of Llama, Qwen2.5, Phi-3, DeepSeek-V3, StarCoder2 and GPT-2 XL, and of output layers."""
TOKENS = (1024, 2048, 4096, 8192, 16384)
KINDS = ("forward", "input", "weight")
"""Products of a layer: forward with K-major A and B; gradient of the input with row-major B; gradient of the weight
with MN-major A and B."""
TYPES = ("bf16", "f16", "e4m3", "e4m3-scaled", "tf32", "s8")
MOST_ELEMENTS, MOST_FLOPS, LEAST_FLOPS = 1.2e9, 14e12, 20e9
"""Maximum elements of D; maximum and minimum FLOP of a problem."""
OBJECTIVES = ("sustained", "burst")


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    from benchmarks.common import Record, parser_of

    from gemmill.runtime.registry import Registry

    parser = parser_of(__doc__)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["bf16"], help="(bf16)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="(all; 8 bits and tf32: forward)")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=OBJECTIVES, help="objectives (both)")
    parser.add_argument("--problems", type=int, default=20, help="problems of each type (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    parser.add_argument("--turns", type=int, default=9, help="turns of each candidate (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a turn (%(default)s)")
    arguments = parser.parse_args()
    told = {name: getattr(arguments, name) for name in ("seed", "turns", "seconds")}
    record = Record("sustained", arguments, **told)
    registry = Registry()
    problems = {
        dtype: [*drawn(dtype, arguments.kinds, arguments.problems, arguments.seed, registry)]
        for dtype in arguments.types
    }
    choices = {
        problem: {name: registry.select(problem, objective=name).kernel for name in arguments.objectives}
        for own in problems.values()
        for problem in own
    }
    registry.warm([*{kernel.name for own in choices.values() for kernel in own.values()}])  # in parallel
    for dtype, own in problems.items():
        rows: list[dict[str, Any]] = []
        for problem in own:
            rows.append(measure(problem, choices[problem], registry, arguments, record.telemetry))
            record.add(rows[-1])
            shown = "  ".join(
                f"{name} {row['ratio'][0]:.3f} ({row['ratio'][1]:.3f} to {row['ratio'][2]:.3f}) J {row['joules']:.3f}"
                for name, row in rows[-1]["selected"].items()
            )
            print(f"{rows[-1]['problem']:32} {shown}", flush=True)
        for name in arguments.objectives:
            means = {
                x: statistics.geometric_mean([row["selected"][name][x] for row in rows]) for x in ("mean", "joules")
            }
            figures = f"speed {means['mean']:.4f}, joules {means['joules']:.4f}"
            print(f"{dtype}, {len(rows)} problems, {name}: geometric means relative to cuBLAS: {figures}")
    print(f"records: {record.path}")


def drawn(dtype: str, kinds: Sequence[str], count: int, seed: int, registry: Any) -> Iterator[Any]:
    """At most ``count`` random problems of a type that the power limit throttles."""
    from gemmill.runtime.host_gpu import detect
    from gemmill.runtime.select.cost.energy import HELD, power_us

    gpu = detect()
    every = [
        problem
        for n, k in LAYERS
        for tokens in TOKENS
        for kind in (kinds if dtype in ("bf16", "f16") else KINDS[:1])
        if LEAST_FLOPS <= (problem := layer(dtype, kind, tokens, n, k)).flops <= MOST_FLOPS
        and problem.m * problem.n <= MOST_ELEMENTS
    ]
    random.Random(f"{dtype} {seed}").shuffle(every)
    found = 0
    for problem in every:
        choice = registry.select(problem, objective="burst")
        if found < count and power_us(problem, gpu) > HELD * choice.predicted_us:
            found += 1
            yield problem


def layer(dtype: str, kind: str, tokens: int, n: int, k: int) -> Any:
    """A product of a layer with N outputs and K inputs."""
    from benchmarks.common import problem_of

    extents = {"forward": (tokens, n, k), "input": (tokens, k, n), "weight": (n, k, tokens)}[kind]
    a_major, b_major = {"forward": ("k", "k"), "input": ("k", "mn"), "weight": ("mn", "mn")}[kind]
    return problem_of(dtype, *extents, a_major, b_major)


def measure(
    problem: Any, kernels: Mapping[str, Any], registry: Any, arguments: argparse.Namespace, telemetry: Any
) -> dict[str, Any]:
    """Measure the selected kernels and cuBLAS on one problem."""
    import torch
    from benchmarks.common import baseline_graphs, launch_of

    from gemmill.profiler.measure.graph_timing import capture, launches_per_replay
    from gemmill.profiler.measure.operands import make_operands
    from gemmill.profiler.measure.sustained_load import time_turns

    operands = make_operands(problem, 0)
    sets, count = len(operands), launches_per_replay(problem, len(operands))
    launches = {
        str(kernel): launch_of(problem, operands, kernel, registry) for kernel in dict.fromkeys(kernels.values())
    }
    stream = torch.cuda.Stream()
    if not (baselines := baseline_graphs(problem, operands, count, stream)):
        sys.exit(f"{problem}: no baseline is available; block scaling requires gemmill's extra cublaslt")
    graphs = {name: capture(launch, sets, count, stream) for name, launch in launches.items()} | baselines
    always = frozenset(graphs)  # no candidate drops out, since turns are compared one by one
    found = time_turns(graphs, count, arguments.seconds, arguments.turns, telemetry, always)
    best = min(baselines, key=lambda name: statistics.median(found[name][0]))
    return {
        "problem": str(problem),
        "baseline": best,
        "us": {name: values for name, (values, _) in found.items()},
        "watts": {name: reading.watts for name, (_, reading) in found.items()},
        "mhz": {name: reading.sm_mhz for name, (_, reading) in found.items()},
        "selected": {
            objective: compared(found[best], found[str(kernel)]) | {"kernel": str(kernel)}
            for objective, kernel in kernels.items()
        },
    }


def compared(baseline: tuple[Sequence[float], Any], own: tuple[Sequence[float], Any]) -> dict[str, Any]:
    """Speed relative to the baseline (median and quartiles over turns, and ratio of medians), and joules per launch
    relative to the baseline."""
    from benchmarks.common import ratios

    (theirs, their_state), (ours, state) = baseline, own
    mean = statistics.median(theirs) / statistics.median(ours)
    return {"ratio": ratios(theirs, ours), "mean": mean, "joules": state.watts / their_state.watts / mean}
