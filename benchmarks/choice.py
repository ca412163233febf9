"""Host time of a selection: for problems without measurements, for mixed types, and for the first one of a process.

``warm``: random numbers of rows with the weights of language models in bf16, after 50 other selections. ``mixed``: 400
problems of all types and several layouts; the first of each type reads its kernels and their table from the store.
``fresh``: the first selection of a process, including imports. Needs neither a GPU nor PyTorch.

Reproduces docs/performance/selection.md, "Time of a choice".
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import time
from statistics import quantiles
from typing import Any

WEIGHTS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (10240, 8192), (8192, 28672))
"""N and K of layers of language models."""
TYPES: tuple[dict[str, Any], ...] = (
    *({"a": dtype} for dtype in ("bf16", "f16", "tf32", "e4m3", "s8")),
    {"a": "bf16", "b_major": "mn"},
    {"a": "bf16", "a_major": "mn", "b_major": "mn"},
    {"a": "bf16", "d_dtype": "f32"},
)
FRESH = "import gemmill; gemmill.Registry(gpu={gpu!r}).select(gemmill.GemmProblem(77, 4096, 4096))"


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--gpu", default="H200", help="GPU to select for (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    arguments = parser.parse_args()
    import gemmill

    chance = random.Random(arguments.seed)
    warm = [gemmill.GemmProblem(m, *chance.choice(WEIGHTS)) for m in chance.sample(range(1, 8192), 550)]
    mixed = [
        gemmill.GemmProblem(chance.randint(1, 512) * 16, *chance.choice(WEIGHTS), **chance.choice(TYPES))
        for _ in range(400)
    ]
    expanding = gemmill.Registry(gpu=arguments.gpu)
    for problem in (*mixed, *warm):  # fills the store with the names and tables of all kernels
        expanding.select(problem)
    samples = {
        "warm, not measured": _times(gemmill.Registry(gpu=arguments.gpu), warm)[50:],
        "mixed types": _times(gemmill.Registry(gpu=arguments.gpu), mixed),
        "fresh process": [_fresh(arguments.gpu) for _ in range(5)],
    }
    figures = {
        name: {**dict(zip(("low", "median", "high"), quantiles(values), strict=True)), "worst": max(values)}
        for name, values in samples.items()
    }
    if arguments.json:
        print(json.dumps({"us": figures, "python": sys.version.split()[0]}, indent=2))
        return
    print(f"{'microseconds':24}{'median':>10}{'quartiles':>22}{'worst':>10}")
    for name, figure in figures.items():
        print(f"{name:24}" + "{median:>10.0f}{low:>11.0f}{high:>11.0f}{worst:>10.0f}".format(**figure))


def _times(registry: Any, problems: list[Any]) -> list[float]:
    """Microseconds of each selection."""
    found = []
    gc.disable()
    for problem in problems:
        start = time.perf_counter_ns()
        registry.select(problem)
        found.append((time.perf_counter_ns() - start) / 1000)
    gc.enable()
    return found


def _fresh(gpu: str) -> float:
    """Microseconds of a process that makes one selection."""
    start = time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", FRESH.format(gpu=gpu)], check=True)
    return (time.perf_counter_ns() - start) / 1000
