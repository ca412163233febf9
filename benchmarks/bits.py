"""What the same bits cost: the kernel of ``bits="invariant"`` relative to that of ``bits="any"``, and to cuBLAS.

The problems are random ones, as in ``drawn``, and the layers of nine language models with 1 to 16,384 rows, in random
order. Candidates run in CUDA graphs of a millisecond, in interleaved rounds. Where both choices are one kernel, it runs
once. The program prints geometric means, the worst problems and means by number of rows, and writes JSON. Needs an
NVIDIA GPU and PyTorch. With the environment variables ``CUBLAS_WORKSPACE_CONFIG=:16:8`` and
``CUBLASLT_WORKSPACE_SIZE=1``, cuBLAS has no workspace, as in vLLM's batch-invariant mode.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

TYPES = ("bf16", "e4m3", "tf32")
ROWS = tuple(2**i for i in range(15))
LAYERS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "Llama-3-8B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    "Llama-3-70B": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "Qwen3-0.6B": ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),
    "Qwen3-8B": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
    "Mistral-7B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "Gemma-2-9B": ((8192, 3584), (3584, 4096), (28672, 3584), (3584, 14336)),
    "DeepSeek-V3": (
        *((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384)),
        *((36864, 7168), (7168, 18432), (4096, 7168), (7168, 2048)),
    ),
    "gpt-oss-120b": ((5120, 2880), (2880, 4096), (128, 2880)),
    "Phi-4": ((7680, 5120), (5120, 5120), (35840, 5120), (5120, 17920)),
}
"""N and K of the layers that engines run, by model."""
MOST_D = 1.2e9
"""Most elements of D."""
ALIKE = (("invariant", "any"), ("any", "cublas"), ("invariant", "cublas"))
"""The ratios of times."""
SHOWN = 10


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    from benchmarks.common import Record, parser_of

    from gemmill.runtime.registry import Registry

    parser = parser_of(__doc__, 5)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="(all)")
    parser.add_argument("--problems", type=int, default=300, help="random problems of each type (%(default)s)")
    parser.add_argument("--seed", type=int, default=74, help="random seed (%(default)s)")
    parser.add_argument("--seconds", type=float, default=150, help="measuring of each type (%(default)s)")
    arguments = parser.parse_args()
    record, registry = Record("bits", arguments, seed=arguments.seed), Registry()
    for dtype in arguments.types:
        chosen = [
            (origin, problem, choices(problem, registry))
            for origin, problem in problems(dtype, arguments.problems, arguments.seed)
        ]
        registry.warm([*{kernel.name for _, _, kernels in chosen for kernel in kernels.values()}])  # in parallel
        end, rows = time.monotonic() + arguments.seconds, list[dict[str, Any]]()
        for origin, problem, kernels in chosen:
            if time.monotonic() > end:
                break
            rows.append({"origin": origin, **measure(problem, kernels, registry, arguments.rounds)})
            record.add(rows[-1])
        print(f"{dtype}: {len(rows)} of {len(chosen)} problems")
        show(rows)
    print(f"records: {record.path}")


def problems(dtype: str, count: int, seed: int) -> list[tuple[str, Any]]:
    """Random problems and layers, shuffled, so that a run that ends early has a fair sample."""
    from benchmarks.common import problem_of
    from benchmarks.drawn import drawn

    found = dict.fromkeys(drawn(dtype, count, seed), "drawn")
    for n, k in dict.fromkeys(layer for layers in LAYERS.values() for layer in layers):
        found |= {problem_of(dtype, m, n, k): "layer" for m in ROWS if m * n <= MOST_D}
    shuffled = [(origin, problem) for problem, origin in found.items()]
    random.Random(seed).shuffle(shuffled)
    return shuffled


def choices(problem: Any, registry: Any) -> dict[str, Any]:
    """The selected kernel by value of ``bits``."""
    return {bits: registry.select(problem, bits=bits, objective="burst").kernel for bits in ("any", "invariant")}


def measure(problem: Any, kernels: Mapping[str, Any], registry: Any, rounds: int) -> dict[str, Any]:
    """Measure both choices and cuBLAS on one problem: medians in microseconds, and ratios of times."""
    import torch
    from benchmarks.common import baseline_graphs, launch_of

    from gemmill.profiler.measure.graph_timing import capture, launches_per_replay, time_rounds
    from gemmill.profiler.measure.operands import make_operands

    operands = make_operands(problem, 0)
    sets, count = len(operands), launches_per_replay(problem, len(operands))
    stream = torch.cuda.Stream()
    graphs = {
        str(kernel): capture(launch_of(problem, operands, kernel, registry), sets, count, stream)
        for kernel in {*kernels.values()}
    }
    graphs |= baseline_graphs(problem, operands, count, stream)
    time_rounds(graphs, count, 1)  # lets the clocks settle
    us = time_rounds(graphs, count, rounds)
    by_label = {"cublas": us.get("cublas"), **{bits: us[str(kernel)] for bits, kernel in kernels.items()}}
    times = {label: found for label, found in by_label.items() if found}
    return {
        "problem": str(problem),
        "m": problem.m,
        "kernels": {bits: str(kernel) for bits, kernel in kernels.items()},
        "us": {label: statistics.median(found) for label, found in times.items()},
        "ratios": {
            f"{left} / {right}": statistics.median(x / y for x, y in zip(times[left], times[right], strict=True))
            for left, right in ALIKE
            if left in times and right in times
        },
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print means and the worst ratio of random problems and of layers, means by rows, and the worst problems."""
    for origin in ("drawn", "layer"):
        for left, right in ALIKE:
            pair = f"{left} / {right}"
            own = [row for row in rows if row["origin"] == origin and pair in row["ratios"]]
            if own:
                worst = max(own, key=lambda row: row["ratios"][pair])
                at = f"{worst['ratios'][pair]:.3f} {worst['problem']}"
                print(f"  {origin:6} {pair:18} {_mean(own, pair):.4f}, worst {at}")
    by_rows = sorted((row for row in rows if row["origin"] == "layer"), key=lambda row: row["m"])
    for m, group in groupby(by_rows, key=lambda row: row["m"]):
        listed = [*group]
        means = (f"{left} / {right} {_mean(listed, f'{left} / {right}'):.3f}" for left, right in ALIKE)
        print(f"  layers with {m:5} rows: {', '.join(means)}")
    for row in sorted(rows, key=lambda row: -row["ratios"]["invariant / any"])[:SHOWN]:
        kernels = ", ".join(f"{bits} {kernel}" for bits, kernel in row["kernels"].items())
        print(f"  {row['ratios']['invariant / any']:.3f} {row['problem']:32} {kernels}", flush=True)


def _mean(rows: Iterable[dict[str, Any]], pair: str) -> float:
    found = [row["ratios"][pair] for row in rows if pair in row["ratios"]]
    return statistics.geometric_mean(found) if found else float("nan")
