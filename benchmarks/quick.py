"""Train the decision trees of quick selection (``runtime/select/decision_tree.py``), one for problems of some formats.

Problems are drawn, and the model says what kernels take. A leaf names the kernel that is the fastest for its problems,
in the mean of logarithms of times. The leaf that is divided next, and the comparison that divides it, are those that
gain most over all problems. What comes out is judged on problems drawn anew. Needs no GPU. Run it after
``benchmarks/fit.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


class Table(NamedTuple):
    """Formats that have a tree in common."""

    types: Sequence[tuple[str, str, str]]
    """Of A, B and D; those that come first are drawn, the others have kernels alike."""
    accumulator: str
    majors: tuple[str, str] = ("k", "k")
    """Of A and B."""


TABLES = (
    *(Table((("bf16",) * 3, ("f16",) * 3), "f32", (a, b)) for a in ("k", "mn") for b in ("k", "mn")),
    Table([("e4m3", "e4m3", d) for d in ("bf16", "f16")], "f32"),
    Table([("s8", "s8", "s32")], "s32"),
    Table([("tf32", "tf32", "f32")], "f32"),
)
CHUNK = 20_000
"""Problems that a process draws at a time."""
NAMED = 64
"""Kernels that are told apart of each; the others count as slower than all of these."""
BEHIND = 0.05
"""By how much."""
SAMPLE = 40_000
"""Of how many problems of a leaf at most comparisons are tried."""
THRESHOLDS = 96
"""How many values of a figure are tried."""
FEWEST = 10
"""Problems of a leaf."""


class Asked(NamedTuple):
    """Problems, and what the model says of them."""

    extents: Any
    """(problems, 3): M, N and K."""
    kernels: list[tuple[str, bool]]
    """Names, and whether they run the transposed problem."""
    fastest: Any
    """(problems, NAMED): which of them are the fastest, the best first; -1 where there are no more."""
    behind: Any
    """The same of the logarithms of their times over that of the best."""


def main() -> None:
    """Draw, grow, judge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True, help="whose file to write, by its name in library/arch.py")
    parser.add_argument("--problems", type=int, default=600_000, help="drawn of each formats (%(default)s)")
    parser.add_argument("--leaves", type=int, default=4096, help="of a tree (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    arguments = parser.parse_args()

    from gemmill.library.files import publish
    from gemmill.runtime.select.decision_tree import VERSION
    from gemmill.runtime.select.measured import FORMATS, formats_of
    from gemmill.runtime.select.shipped import path_of

    chunks = -(-arguments.problems // CHUNK) + 1  # one of them to judge by
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        drawn = [
            [pool.submit(ask, arguments.gpu, table, seed) for seed in range(chunks)] for table in range(len(TABLES))
        ]
        growing = [
            pool.submit(table_of, [chunk.result() for chunk in own], arguments.gpu, arguments.leaves) for own in drawn
        ]
        tables = []
        for table, future in enumerate(growing):
            content, judged = future.result()
            asked = {
                "types": TABLES[table].types,
                "formats": dict(zip(FORMATS, formats_of(problem_of(table, 1, 1, 1)), strict=True)),
                "of the model's choice: mean, 5th and 1st percentile": judged,
            }
            tables.append(asked | content)
            print(*TABLES[table], judged, flush=True)
    fitted = hashlib.sha256(path_of(arguments.gpu, "trees").read_bytes()).hexdigest()
    origin = {"version": VERSION, "gpu": arguments.gpu, "grown of": fitted, "problems": arguments.problems}
    content = origin | {"tables": tables}
    path = path_of(arguments.gpu, "quick")
    publish(path, [json.dumps(content, separators=(",", ":")).replace('],["', '],\n["').encode(), b"\n"])
    print(f"{path}: {path.stat().st_size:,} bytes")


def problem_of(table: int, m: int, n: int, k: int) -> Any:
    """A problem of the formats of a table, whose rows are aligned."""
    from gemmill.library.problem import GemmProblem

    types, accumulator, (a_major, b_major) = TABLES[table]
    a, b, d = types[0]
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=1,
        a_dtype=a,  # type: ignore[arg-type]
        a_major=a_major,  # type: ignore[arg-type]
        b_dtype=b,  # type: ignore[arg-type]
        b_major=b_major,  # type: ignore[arg-type]
        accumulator=accumulator,  # type: ignore[arg-type]
        d_dtype=d,  # type: ignore[arg-type]
        d_major="n",
    )


def draw(chance: random.Random) -> tuple[int, int, int]:
    """M, N and K: mostly of layers, with any number of rows."""
    from gemmill.runtime.select.decision_tree import LARGEST_EXTENT

    def extent(most: int, grain: int) -> int:
        return max(grain, round(2 ** chance.uniform(7, np.log2(most)) / grain) * grain)

    def layer() -> int:
        most = LARGEST_EXTENT if chance.random() < 0.05 else 1 << 15
        return extent(most, chance.choice((16, 32, 64, 64, 128, 128, 256, 256, 256)))

    while True:
        kind, n, k = chance.random(), layer(), layer()
        if kind < 0.15:
            m = layer()
        elif kind < 0.25:
            m = 1 << chance.randrange(15)
        elif kind < 0.4:
            m = round(2 ** chance.uniform(3, 14) / 8) * 8
        elif kind < 0.6:
            m = round(2 ** chance.uniform(0, 14.3))
        else:
            m = round(2 ** chance.uniform(6, 14.3))
        if m * n * k < 1 << 45:
            return m, n, k


def ask(gpu: str, table: int, seed: int) -> Asked:
    """A chunk of problems of a table and what the model says of them."""
    from gemmill.runtime.registry import Registry
    from gemmill.runtime.select.gpus import figures
    from gemmill.runtime.select.measured import measured

    chance, registry, tables = random.Random(1000 * table + seed), Registry(gpu=figures(gpu)), measured(gpu)
    extents: list[tuple[int, int, int]] = []
    kernels: dict[tuple[str, bool], int] = {}
    fastest, behind = np.full((CHUNK, NAMED), -1, np.int16), np.zeros((CHUNK, NAMED), np.float32)
    while len(extents) < CHUNK:
        m, n, k = draw(chance)
        if TABLES[table].majors[0] == "mn":  # rows of A are aligned
            m = -(-m // 8) * 8
        problem = problem_of(table, m, n, k)
        if tables and tables.times(problem):
            continue  # no tree is asked
        found = registry.candidates(problem, NAMED)
        us = np.array([candidate.us for candidate in found])
        own = [kernels.setdefault((candidate.name, candidate.swap_ab), len(kernels)) for candidate in found]
        fastest[len(extents), : us.size], behind[len(extents), : us.size] = own, np.log(us / us[0])
        extents.append((m, n, k))
    return Asked(np.array(extents), [*kernels], fastest, behind)


def table_of(chunks: Sequence[Asked], gpu: str, leaves: int) -> tuple[dict[str, Any], list[float]]:
    """The tree that is grown of all chunks but the last, and by the last what its choice reaches of the model's: the
    mean, the 5th and the 1st percentile."""
    from gemmill.runtime.select.decision_tree import FIGURES, TILES, Tree, extents_of, tiles_a_wave
    from gemmill.runtime.select.gpus import figures as gpu_figures

    sms = gpu_figures(gpu).sms
    names = [*dict.fromkeys(kernel for chunk in chunks for kernel in chunk.kernels)]

    def costs(chunk: Asked) -> Any:
        dense = np.repeat(chunk.behind.max(axis=1, keepdims=True) + np.float32(BEHIND), len(names), axis=1)
        rows, places = np.nonzero(chunk.fastest >= 0)
        place_of = np.array([names.index(kernel) for kernel in chunk.kernels])
        dense[rows, place_of[chunk.fastest[rows, places]]] = chunk.behind[rows, places]
        return dense

    def asked(chunk: Asked) -> Any:
        rows = [
            (*extents_of(m, n, k), *(tiles_a_wave(m, n, tile, sms) for tile in range(len(TILES))))
            for m, n, k in chunk.extents.tolist()
        ]
        return np.array(rows)

    *grown_of, judge = chunks
    nodes = grow(np.concatenate([asked(x) for x in grown_of]), np.concatenate([costs(x) for x in grown_of]), leaves)
    used = sorted({node for node in nodes if isinstance(node, int)})
    content = {
        "kernels": [names[kernel] for kernel in used],
        "nodes": [used.index(x) if isinstance(x, int) else [FIGURES[x[0]], x[1]] for x in nodes],
    }
    tree = Tree.of(content)
    behind = costs(judge)
    reached = [
        float(np.exp(-behind[row, used[tree.kernel(m, n, k, sms)]]))
        for row, (m, n, k) in enumerate(judge.extents.tolist())
    ]
    return content, [round(float(x), 4) for x in (np.mean(reached), *np.percentile(reached, (5, 1)))]


def grow(figures: Any, costs: Any, leaves: int) -> list[Any]:
    """Nodes of a tree: (figure, threshold) or, of a leaf, the column of ``costs`` that is named; left first.

    Args:
        figures: what can be compared, (problems, figures).
        costs: of naming a kernel, (problems, kernels).
        leaves: how many there may be.
    """
    best = costs.argmin(axis=1)
    own: list[Any] = []
    right: dict[int, int] = {}
    left: dict[int, int] = {}
    waiting: list[tuple[float, int, int, float, Any]] = []

    def add(rows: Any) -> int:
        """A leaf of some problems, and what would be gained by dividing it."""
        node = len(own)
        kernels, counts = np.unique(best[rows], return_counts=True)
        kernels = kernels[np.argsort(-counts, kind="stable")[:NAMED]]
        sample = rows if rows.size <= SAMPLE else np.random.default_rng(0).choice(rows, SAMPLE, replace=False)
        cost = costs[np.ix_(sample, kernels)]
        own.append(int(kernels[cost.sum(axis=0).argmin()]))
        gain, figure, threshold = _division(figures[sample], cost)
        if gain > 0:
            heapq.heappush(waiting, (-gain * rows.size / sample.size, node, figure, threshold, rows))
        return node

    add(np.arange(len(figures)))
    for _ in range(leaves - 1):
        if not waiting:
            break
        _, node, figure, threshold, rows = heapq.heappop(waiting)
        beyond = figures[rows, figure] > threshold
        own[node] = (figure, threshold)
        left[node], right[node] = add(rows[~beyond]), add(rows[beyond])
    ordered: list[Any] = []
    following = [0]
    while following:
        node = following.pop()
        ordered.append(own[node])
        if node in left:
            following += (right[node], left[node])
    return ordered


def _division(figures: Any, cost: Any) -> tuple[float, int, float]:
    """What the best comparison gains, its figure and threshold; a gain of 0 where none gains anything."""
    whole = cost.sum(axis=0)
    found = (0.0, -1, 0.0)
    count = min(THRESHOLDS, len(cost) // FEWEST)
    if count < 2:
        return found
    for figure in range(figures.shape[1]):
        order = np.argsort(figures[:, figure], kind="stable")
        values = figures[order, figure]
        places = np.unique(np.searchsorted(values, values[np.arange(1, count) * len(values) // count], side="right"))
        places = places[(places >= FEWEST) & (places <= len(values) - FEWEST)]
        if not places.size:
            continue
        below = np.cumsum(np.add.reduceat(cost[order], [0, *places], axis=0), axis=0)[:-1]
        costs = below.min(axis=1) + (whole - below).min(axis=1)
        at = int(costs.argmin())
        gain = float(whole.min() - costs[at])
        if gain > found[0]:
            found = gain, figure, _between(values[places[at] - 1], values[places[at]])
    return found


def _between(below: float, above: float) -> float:
    """A number of few digits that divides two."""
    middle = (below + above) / 2
    short = float(f"{middle:.6g}")
    return short if below <= short < above else float(middle)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
