"""The linear layers of public models as CUDA graphs: what is selected, and cuBLAS, each one graph of a model's layer.

A graph holds the products of one layer in their order, on weights from DRAM, as often as takes a replay ten
milliseconds where rows are few and a hundred where they are many, so that power binds as it does in a prefill. Rounds
with their order drawn anew; ratios round by round with quartiles, beside the faster of PyTorch's cuBLAS and cuBLASLt
called directly, where the latter is installed. Results to a file (JSON). Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/programs.md, "Layers alone".
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

MODELS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "Llama-3.1-8B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "Llama-3.1-70B": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "Qwen2.5-7B": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    "Mistral-Nemo-12B": ((6144, 5120), (5120, 4096), (28672, 5120), (5120, 14336)),
    "Phi-3-mini": ((9216, 3072), (3072, 3072), (16384, 3072), (3072, 8192)),
    "Gemma-7B": ((12288, 3072), (3072, 4096), (49152, 3072), (3072, 24576)),
    "StarCoder2-7B": ((5632, 4608), (4608, 4608), (18432, 4608), (4608, 18432)),
    "GPT-2 XL": ((4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400)),
}
"""N and K of a layer's weights: queries, keys and values; the attention's output; gate and up, or up; down."""
DECODE = (1, 4, 16, 64, 256)
PREFILL = (512, 2048, 16384)
REPLAY_MS = {"decode": 10.0, "prefill": 100.0}
"""Least milliseconds of a replay."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options, problem_of

    from gemmill.library.problem import REGIMES
    from gemmill.runtime.registry import Registry

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], help="(all)")
    parser.add_argument("--decode", nargs="*", type=int, default=DECODE, help="rows (%(default)s)")
    parser.add_argument("--prefill", nargs="*", type=int, default=PREFILL, help="rows (%(default)s)")
    parser.add_argument("--dtype", default="bf16", help="type of all (%(default)s)")
    parser.add_argument("--objective", choices=REGIMES, default=REGIMES[0], help="of the choices (%(default)s)")
    add_options(parser)
    parser.set_defaults(rounds=9)
    arguments = parser.parse_args()
    record = Record("layers", arguments, dtype=arguments.dtype, objective=arguments.objective)
    registry = Registry()
    asked = {
        (what, model, rows): [problem_of(arguments.dtype, rows, n, k) for n, k in MODELS[model]]
        for what, own in (("decode", arguments.decode), ("prefill", arguments.prefill))
        for model in arguments.models
        for rows in own
    }
    chosen = {
        problem: registry.select(problem, objective=arguments.objective).name
        for own in asked.values()
        for problem in own
    }
    registry.warm(sorted({*chosen.values()}))  # in parallel
    found: dict[str, list[dict[str, Any]]] = {}
    for (what, model, rows), problems in asked.items():
        row = measure(problems, chosen, registry, REPLAY_MS[what], arguments.rounds)
        record.add({"model": model, "rows": rows, "what": what} | row)
        found.setdefault(what, []).append(row)
        middle, low, high = row["ratios"][row["faster"]]
        print(f"{model:17} {what:7} {rows:6} {middle:.3f} ({low:.3f} to {high:.3f}) of {row['faster']}", flush=True)
    for what, measured in found.items():
        own = [row["ratios"][row["faster"]] for row in measured]
        mean, least = statistics.geometric_mean([middle for middle, _, _ in own]), min(middle for middle, _, _ in own)
        behind = sum(high < 1 for _, _, high in own)
        print(f"{what}, {len(own)} graphs: {mean:.4f}, least {least:.3f}, {behind} behind by more than quartiles")
    print(f"records: {record.path}")


def measure(
    problems: Sequence[Any], chosen: Mapping[Any, str], registry: Any, replay_ms: float, rounds: int
) -> dict[str, Any]:
    """A layer's graphs, of what is selected and of the baselines: milliseconds of the layer, ratios."""
    import torch
    from benchmarks.common import check, ratios

    from gemmill.profiler.measure.operands import make_operands
    from gemmill.profiler.measure.timing import capture, time_rounds

    operands = {problem: make_operands(problem, 0) for problem in dict.fromkeys(problems)}
    stream = torch.cuda.Stream()
    graphs: dict[str, Any] = {}
    first: dict[str, Any] = {}
    times = 0
    for name, launches in layer(problems, operands, chosen, registry).items():
        if not times:
            graph = capture(partial(in_order, launches), 1, 1, stream)
            once = min(time_rounds({name: graph}, 1, 3)[name]) / 1e3
            times = math.ceil(replay_ms / once)
        graphs[name] = capture(partial(in_order, launches), times, times, stream)
        first[name] = [operands[problem][0].d.clone() for problem in problems]
    mine = first.pop("gemmill")
    for name, results in first.items():
        for problem, ours, theirs in zip(problems, mine, results, strict=True):
            check(f"{problem}, beside {name}", ours.double(), theirs.double())
    time_rounds(graphs, times, 1)  # until clocks have settled
    us = time_rounds(graphs, times, rounds)
    against = {name: ratios(values, us["gemmill"]) for name, values in us.items() if name != "gemmill"}
    return {
        "ms": {name: statistics.median(values) / 1e3 for name, values in us.items()},
        "ratios": against,
        "faster": min(against, key=lambda name: statistics.median(us[name])),
        "times": times,
        "kernels": [chosen[problem] for problem in problems],
    }


def layer(
    problems: Sequence[Any], operands: Mapping[Any, Sequence[Any]], chosen: Mapping[Any, str], registry: Any
) -> dict[str, list[Callable[[int], None]]]:
    """The launches of a layer, in order, by who launches; a baseline only where it has all of them."""
    from benchmarks.common import launch_of

    from gemmill.profiler.baselines.baseline import BASELINES, CUBLAS, CUBLASLT, absent

    own = {problem: launch_of(problem, operands[problem], chosen[problem], registry) for problem in operands}
    found = {"gemmill": own}
    for name in (CUBLAS, CUBLASLT):
        if name not in absent():
            prepared = {problem: BASELINES[name](problem, operands[problem]) for problem in operands}
            theirs = {problem: baseline.launch for problem, baseline in prepared.items() if baseline}
            if len(theirs) == len(own):
                found[name] = theirs
    sets = {problem: len(own) for problem, own in operands.items()}
    return {
        name: [partial(rotated, launch[problem], sets[problem]) for problem in problems]
        for name, launch in found.items()
    }


def rotated(launch: Callable[[int], None], sets: int, index: int) -> None:
    """A launch on the next of its operand sets."""
    launch(index % sets)


def in_order(launches: Sequence[Callable[[int], None]], index: int) -> None:
    """The launches of a layer."""
    for launch in launches:
        launch(index)


if __name__ == "__main__":
    main()
