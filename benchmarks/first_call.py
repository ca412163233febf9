"""Host time of the first call of a signature, up to the driver: selection, and loading the kernel.

Signatures are random: numbers of rows with the weights of language models in bf16, all different. The selected kernels
are compiled before. The program measures only the selection, and the selection with a kernel from memory, from the
store, or from a pack whose kernels were verified before. It also measures these three without the selection, with the
kernel given by name. Each way uses other signatures. Needs a toolchain, but neither a GPU nor PyTorch.

Reproduces docs/performance/summary.md, "First call".
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

WEIGHTS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (10240, 8192), (8192, 28672))
"""N and K of layers of language models."""
MOST_ROWS = 8192


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--signatures", type=int, default=300, help="signatures for each way (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    arguments = parser.parse_args()

    import gemmill
    from gemmill.runtime.storage.pack import write_pack

    count = arguments.signatures
    problems = _drawn(7 * count + 1, random.Random(arguments.seed))
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "kernels.pack"
        choosing = gemmill.Registry()
        chosen = {problem: choosing.select(problem).name for problem in problems}
        names = {*chosen.values()}
        write_pack(pack, choosing.warm(names))
        loaded, stored, packed = gemmill.Registry(), gemmill.Registry(), gemmill.Registry(packs=[pack])
        for artifact in choosing.warm(names):
            loaded.add(artifact)
        ways: dict[str, Callable[[Any], Any]] = {
            "only the selection": loaded.select,
            "kernel in memory": lambda problem: loaded.get(loaded.select(problem).name),
            "kernel in the store": lambda problem: stored.get(stored.select(problem).name),
            "kernel in a pack": lambda problem: packed.get(packed.select(problem).name),
            "kernel in memory, by name": lambda problem: loaded.get(chosen[problem]),
            "kernel in the store, by name": lambda problem: stored.get(chosen[problem]),
            "kernel in a pack, by name": lambda problem: packed.get(chosen[problem]),
        }
        for name in names:  # verify the kernels, and fill the file cache
            packed.get(name)
            stored.get(name)
        figures = _measured(ways, problems, (stored, packed))
    if arguments.json:
        print(json.dumps({"us": figures, "kernels": len(names), "python": sys.version.split()[0]}, indent=2))
        return
    print(f"{f'microseconds, {len(names)} kernels':36}{'median':>8}{'quartiles':>18}{'worst':>9}")
    for name, figure in figures.items():
        print(f"{name:36}" + "{median:>8.0f}{low:>9.0f}{high:>9.0f}{worst:>9.0f}".format(**figure))


def _drawn(count: int, chance: random.Random) -> list[Any]:
    """Distinct random problems."""
    from gemmill.library.problem import GemmProblem

    drawn = {(chance.randint(1, MOST_ROWS), *chance.choice(WEIGHTS)): None for _ in range(2 * count)}
    return [GemmProblem(m, n, k) for m, n, k in [*drawn][:count]]


def _measured(
    ways: dict[str, Callable[[Any], Any]], problems: list[Any], forgetting: tuple[Any, ...]
) -> dict[str, dict[str, float]]:
    """Microseconds of each way; the ways take turns, and each problem is used once."""
    first, *others = problems
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(first)
    gc.disable()
    for i, problem in enumerate(others):
        name = [*ways][i % len(ways)]
        for registry in forgetting:
            registry._loaded.clear()  # force the registry to read the kernel again
        start = time.perf_counter_ns()
        ways[name](problem)
        samples[name].append((time.perf_counter_ns() - start) / 1000)
    gc.enable()
    return {
        name: {**dict(zip(("low", "median", "high"), quantiles(values), strict=True)), "worst": max(values)}
        for name, values in samples.items()
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    main()
