"""Problems drawn at random, mostly of layers, and what the model says of them: what decision trees are trained on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.decision_tree import LARGEST_EXTENT
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.measured import measured


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


def problem_of(table: int, m: int, n: int, k: int) -> GemmProblem:
    """A problem of the formats of a table, whose rows are aligned."""
    types, accumulator, (a_major, b_major) = TABLES[table]
    a, b, d = types[0]
    return GemmProblem.known(
        m=m,
        n=n,
        k=k,
        batch=1,
        a_dtype=a,
        a_major=a_major,
        b_dtype=b,
        b_major=b_major,
        accumulator=accumulator,
        d_dtype=d,
        d_major="n",
    )


def draw(chance: random.Random) -> tuple[int, int, int]:
    """M, N and K: mostly of layers, with any number of rows."""

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


def ask(gpu: str, folder: Path, table: int, seed: int) -> Asked:
    """A chunk of problems of a table and what the model in a folder says of them."""
    chance, registry = random.Random(1000 * table + seed), Registry(gpu=figures(gpu), model=folder)
    tables = measured(registry.gpu.name, registry.gpu.model)
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
