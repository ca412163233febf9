"""Decision trees of quick selection (``runtime/select/decision_tree.py``) trained, one for problems of some formats.

Problems are drawn, and the model says what kernels take. A leaf names the kernel that is the fastest for its problems,
in the mean of logarithms of times. The leaf that is divided next, and the comparison that divides it, are those that
gain most over all problems. What comes out is judged on problems drawn anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from gemmill.profiler.training.drawn import CHUNK, NAMED, TABLES, Asked, ask, problem_of
from gemmill.runtime.select.decision_tree import FIGURES, TILES, Tree, extents_of, tiles_a_wave
from gemmill.runtime.select.gpus import figures as gpu_figures
from gemmill.runtime.select.measured import FORMATS, formats_of

LEAVES = 4096
"""Of a tree, at most."""
BEHIND = 0.05
"""By how much kernels are slower than those that the model names, whose times are not looked at."""
SAMPLE = 40_000
"""Of how many problems of a leaf at most comparisons are tried."""
THRESHOLDS = 96
"""How many values of a figure are tried."""
FEWEST = 10
"""Problems of a leaf."""


def decision_trees(
    gpu: str, folder: Path, problems: int, jobs: int, listener: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The tables of a file of decision trees, of ``problems`` drawn of each formats, by the model in a folder."""
    chunks = -(-problems // CHUNK) + 1  # one of them to judge by
    tables = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        drawn = [[pool.submit(ask, gpu, folder, table, seed) for seed in range(chunks)] for table in range(len(TABLES))]
        trained = [pool.submit(table_of, [chunk.result() for chunk in own], gpu, LEAVES) for own in drawn]
        for table, future in enumerate(trained):
            content, judged = future.result()
            asked = {
                "types": TABLES[table].types,
                "formats": dict(zip(FORMATS, formats_of(problem_of(table, 1, 1, 1)), strict=True)),
                "of the model's choice: mean, 5th and 1st percentile": judged,
            }
            tables.append(asked | content)
            listener(f"decision tree for {TABLES[table].types[0]} {TABLES[table].majors}: of the model's {judged}")
    return tables


def table_of(chunks: Sequence[Asked], gpu: str, leaves: int) -> tuple[dict[str, Any], list[float]]:
    """The tree of all chunks but the last, and by the last what its choice reaches of the model's: the
    mean, the 5th and the 1st percentile."""
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

    *trained_on, judge = chunks
    compared, times = (np.concatenate([of(x) for x in trained_on]) for of in (asked, costs))
    nodes = tree_nodes(compared, times, leaves)
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


def tree_nodes(figures: Any, costs: Any, leaves: int) -> list[Any]:
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
