"""Types that families have in common: groups of them, and the rules on what is multiplied, summed and converted to."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields
from gemmill.library.config.model import FamilyName
from gemmill.library.legality.rule import Rule

FP8 = ("e4m3", "e5m2")
INT8 = ("s8", "u8")
D_DTYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("f32", "f16"), ("bf16", "f16", "f32", *FP8)),
        "s32": ("s32", "f32", "bf16", "f16", *INT8),
        "f64": ("f64", "f32"),
    }
)
"""Types that epilogues convert sums to, by the accumulator's."""
Accumulators = Mapping[tuple[str, str], tuple[str, ...]]
"""Accumulator types by the types of A and B."""


def _multiplied(instruction: str, table: Accumulators, f: Fields) -> str | None:
    """A, B and the accumulator are types that the instruction multiplies."""
    a, b, accumulator = str(f["a.dtype"]), str(f["b.dtype"]), str(f["accumulator"])
    accumulators = table.get((a, b))
    if accumulators is None:
        pairs = one_of(tuple(f"{a} x {b}" for a, b in table))
        return f"no {instruction} multiplies {a} x {b}; the types of A and B must be {pairs}"
    if accumulator not in accumulators:
        return f"{a} x {b} cannot accumulate in {accumulator}, only in {one_of(accumulators)}"
    return None


def _converted(f: Fields) -> str | None:
    """Sums are converted to D, and C is added, in types that epilogues know."""
    accumulator, c, d = str(f["accumulator"]), str(f["c.dtype"]), str(f["d.dtype"])
    allowed = D_DTYPES.get(accumulator, ("f32",))
    if d not in allowed:
        return f"D is {d} where sums are {accumulator}; it must be {one_of(allowed)}"
    allowed = (d,) if d in ("s32", "f64") else tuple(dict.fromkeys((d, "f32")))
    if c != "none" and c not in allowed:
        return f"C is {c} where D is {d}; C must be {one_of(allowed)}"
    return None


def multiplied(rule: str, family: FamilyName, instruction: str, table: Accumulators, source: str) -> Rule:
    """The rule that A x B, and what their products are summed in, are in the table."""
    fields = ("accumulator", "b.dtype", "a.dtype")
    return Rule(rule, fields, functools.partial(_multiplied, instruction, table), source, family)


def converted(rule: str, family: FamilyName) -> Rule:
    """The rule that sums are converted to D, and C is added, in types that epilogues know."""
    return Rule(
        rule, ("d.dtype", "c.dtype", "accumulator"), _converted, "gemmill: conversions the epilogue has", family
    )
