"""A few of many kernels that have between them what all have: what a quick run compiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from gemmill.library.config.fields import fields_of
from gemmill.library.config.names import parse_name

PAIRED = ("schedule", "scheduler.decomposition", "scheduler.batching", "a.major", "b.major")
"""Fields of which every pair of values is in the sample: they take each other's paths through the source."""
SINGLE = ("arch", "a.dtype", "b.dtype", "accumulator", "promote", "a.align", "b.align", "c.dtype", "d.dtype", "d.major")
"""Fields of which every value is."""


def sample(names: Sequence[str]) -> list[str]:
    """The fewest that a greedy choice finds, in their order."""
    has = {name: _traits(name) for name in names}
    missing, chosen = set().union(*has.values()), set[str]()
    while missing:
        best = max(names, key=lambda name: len(has[name] & missing))
        chosen.add(best)
        missing -= has[best]
    return [name for name in names if name in chosen]


def _traits(name: str) -> set[tuple[object, ...]]:
    fields = fields_of(parse_name(name))
    pairs = combinations([(field, fields[field]) for field in PAIRED], 2)
    return {*pairs, *((field, fields[field]) for field in SINGLE)}
