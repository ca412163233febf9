"""Rules of the families that read and write through plain addresses, without TMA: ``simt``, ``mma`` and ``gemv``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields, Value
from gemmill.library.config.model import FamilyName
from gemmill.library.epilogues.parse import LINEAR, is_gated, parse, staged_formats
from gemmill.library.families.arithmetic import FP8, converted
from gemmill.library.legality.quantities import element_bytes, integer
from gemmill.library.legality.rule import Rule

FP8_ARCHS = ("sm89", "sm90", "sm90a", "sm120")
"""Targets with conversions from and to fp8 (PTX ISA, "cvt": .e4m3x2 needs sm_89)."""
CONVERTING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bf16": ("sm80", "sm86", *FP8_ARCHS), **dict.fromkeys(FP8, FP8_ARCHS)}
)
"""Targets with a conversion to a type of D, of those that not all have (PTX ISA, "cvt": .bf16 needs sm_80)."""
ALIGNS = (16, 8, 4, 2, 1)


def _cluster(f: Fields) -> str | None:
    """A cluster is one CTA."""
    m, n = f["cluster.m"], f["cluster.n"]
    return None if (m, n) == (1, 1) else f"cluster is {m}x{n}; {f['schedule']} kernels share nothing: it must be 1x1"


def _plain(f: Fields) -> str | None:
    """There are no scales and no promotion."""
    scaled = [operand.upper() for operand in "ab" if f[f"{operand}.scale"] != "none"]
    if scaled:
        return f"{' and '.join(scaled)} has block scales, which {f['schedule']} kernels do not apply"
    return (
        f"promote is {f['promote']}; {f['schedule']} kernels sum in f32 as it is: it must be 0"
        if f["promote"]
        else None
    )


def _alignment(operand: str, f: Fields) -> str | None:
    """An operand is aligned to a power of two that is at least an element, where it is contiguous."""
    dtype, major = f[f"{operand}.dtype"], f[f"{operand}.major"]
    if dtype == "none":
        return None
    align, size = integer(f, f"{operand}.align"), element_bytes(f, operand)
    allowed = (size,) if major == "any" else tuple(a for a in ALIGNS if a >= size)
    if align in allowed:
        return None
    what = f"{dtype} with any strides" if major == "any" else f"{dtype} and {major}-major"
    return f"{operand.upper()} is {what}, and aligned to {align} bytes; it must be {one_of(allowed)}"


def _fp8(f: Fields) -> str | None:
    """fp8 operands are for targets that convert them."""
    found = [x.upper() for x in "ab" if f[f"{x}.dtype"] in FP8]
    if not found or f["arch"] in FP8_ARCHS:
        return None
    return f"{' and '.join(found)} is fp8, which {f['arch']} cannot convert; it needs {one_of(FP8_ARCHS)}"


def _conversion(f: Fields) -> str | None:
    """D is of a type that the target converts to."""
    d, arch = str(f["d.dtype"]), f["arch"]
    archs = CONVERTING.get(d)
    if archs is None or arch in archs:
        return None
    return f"D is {d}, to which {arch} cannot convert; it needs {one_of(archs)}"


def lacks_for_epilogue(f: Fields) -> str | None:
    """What an expression asks for that these families, or their target, lack."""
    epilogue = str(f["epilogue"])
    if f["arch"] == "sm70":
        return f"expressions need instructions that {f['arch']} lacks; there the epilogue is {LINEAR}: {epilogue}"
    if is_gated(epilogue):
        return f"{f['schedule']} kernels do not pair columns: {epilogue}"
    if f["arch"] not in FP8_ARCHS and (found := parse(epilogue).functions & frozenset(FP8)):
        return f"{' and '.join(sorted(found))}() converts to fp8, which {f['arch']} cannot: {epilogue}"
    if any(staged_formats(epilogue)):
        return f"{f['schedule']} kernels have no TMA; leave out the majors of matrices: {epilogue}"
    return None


def rules(family: FamilyName) -> tuple[Rule, ...]:
    """What each of these families demands, as rules of one of them."""
    return (
        Rule(
            f"{family}-fp8",
            ("arch", "a.dtype", "b.dtype"),
            _fp8,
            "PTX ISA, cvt: .e4m3x2 and .e5m2x2 need sm_89",
            family,
        ),
        Rule(
            f"{family}-conversion",
            ("d.dtype", "arch"),
            _conversion,
            "PTX ISA, cvt: .bf16 needs sm_80, .e4m3x2 and .e5m2x2 sm_89",
            family,
        ),
        converted(f"{family}-epilogue-types", family),
        *(
            Rule(
                f"{family}-alignment-{operand}",
                (f"{operand}.align", f"{operand}.major", f"{operand}.dtype"),
                functools.partial(_alignment, operand),
                "CUDA Programming Guide, device memory accesses: an access of 1 to 16 bytes is aligned to its size",
                family,
            )
            for operand in "abcd"
        ),
        Rule(f"{family}-cluster", ("cluster.m", "cluster.n"), _cluster, "gemmill: CTAs share nothing", family),
        Rule(
            f"{family}-plain",
            ("promote", "a.scale", "b.scale"),
            _plain,
            "gemmill: block scales and promotion are the wgmma family's",
            family,
        ),
    )


DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {**{f"{operand}.align": ALIGNS for operand in "abcd"}, "cluster.m": (1,), "cluster.n": (1,)}
)
"""The values that each of these families takes, of fields that have no words."""
