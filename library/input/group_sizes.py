"""Sizes of the groups of a problem as text: ``balanced``, ``zipf:1.1``, or a list such as ``128,64,0,64``.

A problem states the number of groups and their total rows (or total K); the selector uses only these. The cost of a
launch also depends on the sizes, so measurements record them.

- ``balanced``: sizes are as equal as possible; masked groups are full.
- ``zipf:S``: sizes are proportional to 1, 2^-S, 3^-S, ..., as when tokens select experts. The order of the groups is
  random, with the seed :data:`SEED`. The largest masked group is full.
- a list: the size of each group. Sizes add up to M for groups of rows, to N for groups of columns, and to K for groups
  along K.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from gemmill.library.config.batchings import GROUPED_EXTENT, MASKED
from gemmill.library.errors import ProblemError

if TYPE_CHECKING:
    from gemmill.library.problem import GemmProblem

BALANCED = "balanced"
SEED = 0
"""Seed of the random order of the groups."""
MAX_EXPONENT = 10.0
_FORMS = "it must be balanced, zipf:S such as zipf:1.1, or a size for each group such as 128,64,0,64"


def checked_sizes(problem: GemmProblem, sizes: str | Sequence[int] | None) -> str:
    """The sizes of a problem's groups in canonical spelling; empty if it has no groups.

    Raises:
        ProblemError: the problem has no groups of different sizes, or the sizes do not match it.
    """
    if problem.batching not in GROUPED_EXTENT:
        if sizes is None or sizes == "":
            return ""
        raise ProblemError(f"sizes is {sizes!r:.80}, but {problem} has no groups; omit sizes")
    text = BALANCED if sizes is None or sizes == "" else sizes if isinstance(sizes, str) else _joined(sizes)
    if text == BALANCED:
        return text
    if (zipf := re.fullmatch(r"zipf:(\d{1,2}(?:\.\d{1,6})?)", text)) is not None:
        if float(zipf[1]) > MAX_EXPONENT:
            raise ProblemError(f"sizes is {text!r}; the exponent of zipf must be at most {MAX_EXPONENT:g}")
        return f"zipf:{float(zipf[1]):g}"
    if not re.fullmatch(r"\d{1,10}(,\d{1,10})*", text):
        raise ProblemError(f"sizes is {text!r:.80}; {_FORMS}")
    numbers = [*map(int, text.split(","))]
    if len(numbers) != problem.batch:
        raise ProblemError(f"sizes has {len(numbers)} numbers, but {problem} has {problem.batch} groups; {_FORMS}")
    extent, name = _extent(problem), GROUPED_EXTENT[problem.batching]
    if problem.batching in MASKED:
        if max(numbers) > extent:
            what = "rows" if name == "m" else "columns"
            raise ProblemError(
                f"sizes contains {max(numbers)}; a masked group of {problem} has at most {name} = {extent} {what}"
            )
    elif sum(numbers) != extent:
        raise ProblemError(f"sizes add up to {sum(numbers)}; they must add up to {name} = {extent}")
    return ",".join(map(str, numbers))


def _joined(sizes: Sequence[int]) -> str:
    if not all(type(size) is int and 0 <= size < 1 << 31 for size in sizes):
        raise ProblemError(f"sizes is {sizes!r:.80}; {_FORMS}")
    return ",".join(map(str, sizes))


def _extent(problem: GemmProblem) -> int:
    """The extent that all groups add up to, or the capacity of masked groups."""
    extent: int = getattr(problem, GROUPED_EXTENT[problem.batching])
    return extent


@lru_cache(256)
def sizes_of(problem: GemmProblem, sizes: str = BALANCED) -> tuple[int, ...]:
    """The size of each group of a problem, from the text of :func:`checked_sizes`; empty if it has no groups."""
    if problem.batching not in GROUPED_EXTENT:
        return ()
    groups, extent = problem.batch, _extent(problem)
    name, _, exponent = (sizes or BALANCED).partition(":")
    if name not in (BALANCED, "zipf"):
        return tuple(map(int, sizes.split(",")))
    shares = [rank ** -float(exponent or 0) for rank in range(1, groups + 1)]
    if name == "zipf":
        draw = random.Random(SEED)
        places = sorted(range(groups), key=[draw.random() for _ in range(groups)].__getitem__)
        shares = [shares[place] for place in places]
    if problem.batching in MASKED:
        return tuple(round(extent * share) for share in shares)
    return _apportioned(extent, shares)


def _apportioned(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Integers in proportion to ``shares`` that add up to ``total``, by the largest-remainder method."""
    scale = total / sum(shares) if shares else 0.0
    sizes = [int(share * scale) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: sizes[i] - shares[i] * scale)
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    return tuple(sizes)


def flops_of(problem: GemmProblem, sizes: str = BALANCED) -> int:
    """Floating-point operations of a problem with groups of these sizes; for masked groups only those of used rows."""
    if problem.batching not in MASKED:
        return problem.flops
    return 2 * sum(sizes_of(problem, sizes)) * (problem.n if problem.batching == "masked" else problem.m) * problem.k


def as_full(problem: GemmProblem, sizes: str = BALANCED) -> GemmProblem:
    """The problem with the capacity of masked groups reduced to the average of these sizes."""
    if problem.batching not in MASKED:
        return problem
    size = max(1, -(-sum(sizes_of(problem, sizes)) // max(1, problem.batch)))
    return problem.but(**{GROUPED_EXTENT[problem.batching]: size}, expected_rows=size)
