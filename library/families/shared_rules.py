"""What families have in common: rules on types, and the plan and rules of those that need no TMA."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.field import Value
from gemmill.library.config.fields import member
from gemmill.library.dtypes import FP8, INT8
from gemmill.library.epilogues.parse import LINEAR, is_gated, parse, staged_formats
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.legality.rule import Rule

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
FP8_ARCHS = ("sm89", "sm90", "sm90a", "sm120")
"""Targets with conversions from and to fp8 (PTX ISA, "cvt": .e4m3x2 needs sm_89)."""
CONVERTING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bf16": ("sm80", "sm86", *FP8_ARCHS), **dict.fromkeys(FP8, FP8_ARCHS)}
)
"""Targets with a conversion to a type of D, of those that not all have (PTX ISA, "cvt": .bf16 needs sm_80)."""
DIRECT_ALIGNS = (16, 8, 4, 2, 1)


class DirectPlan(KernelPlan):
    """The plan of a kernel that reads and writes through plain addresses, without TMA: ``simt``, ``mma``, ``gemv``."""

    @member
    def lacks_for_epilogue(self) -> str | None:
        """What the config's expression needs that the family, or its target, lacks; None where it has all."""
        config, epilogue = self.config, self.config.epilogue
        if config.arch == "sm70":
            return f"expressions need instructions that sm70 lacks; there the epilogue is {LINEAR}: {epilogue}"
        if is_gated(epilogue):
            return f"{config.schedule} kernels do not pair columns: {epilogue}"
        if config.arch not in FP8_ARCHS and (found := parse(epilogue).functions & frozenset(FP8)):
            return f"{' and '.join(sorted(found))}() converts to fp8, which {config.arch} cannot: {epilogue}"
        if any(staged_formats(epilogue)):
            return f"{config.schedule} kernels have no TMA; leave out the majors of matrices: {epilogue}"
        return None


def _multiplied(instruction: str, table: Accumulators, plan: KernelPlan) -> str | None:
    """A, B and the accumulator are types that the instruction multiplies."""
    a, b, accumulator = plan.config.a.dtype, plan.config.b.dtype, plan.config.accumulator
    accumulators = table.get((a, b))
    if accumulators is None:
        pairs = one_of(tuple(f"{a} x {b}" for a, b in table))
        return f"no {instruction} multiplies {a} x {b}; the types of A and B must be {pairs}"
    if accumulator not in accumulators:
        return f"{a} x {b} cannot accumulate in {accumulator}, only in {one_of(accumulators)}"
    return None


def multiplied(rule: str, plan: type[KernelPlan], instruction: str, table: Accumulators, source: str) -> Rule:
    """The rule that A x B, and what their products are summed in, are in the table."""
    fields = ("accumulator", "b.dtype", "a.dtype")
    return Rule(rule, fields, functools.partial(_multiplied, instruction, table), source, plan)


def _converted(plan: KernelPlan) -> str | None:
    """Sums are converted to D, and C is added, in types that epilogues know."""
    accumulator, c, d = plan.config.accumulator, plan.config.c, plan.config.d.dtype
    allowed = D_DTYPES.get(accumulator, ("f32",))
    if d not in allowed:
        return f"D is {d} where sums are {accumulator}; it must be {one_of(allowed)}"
    allowed = (d,) if d in ("s32", "f64") else tuple(dict.fromkeys((d, "f32")))
    if c is not None and c.dtype not in allowed:
        return f"C is {c.dtype} where D is {d}; C must be {one_of(allowed)}"
    return None


def converted(rule: str, plan: type[KernelPlan]) -> Rule:
    """The rule that sums are converted to D, and C is added, in types that epilogues know."""
    return Rule(rule, ("d.dtype", "c.dtype", "accumulator"), _converted, "gemmill: conversions the epilogue has", plan)


def _cluster(plan: DirectPlan) -> str | None:
    """A cluster is one CTA."""
    cluster = plan.config.cluster
    if (cluster.m, cluster.n) == (1, 1):
        return None
    return f"cluster is {cluster.m}x{cluster.n}; {plan.config.schedule} kernels share nothing: it must be 1x1"


def _plain(plan: DirectPlan) -> str | None:
    """There are no scales and no two-level accumulation."""
    config = plan.config
    scaled = [name.upper() for name, operand in config.inputs.items() if operand.scale != "none"]
    if scaled:
        return f"{' and '.join(scaled)} has block scales, which {config.schedule} kernels do not apply"
    if config.promote:
        return f"promote is {config.promote}; {config.schedule} kernels sum in f32 as it is: it must be 0"
    return None


def _alignment(name: str, plan: DirectPlan) -> str | None:
    """An operand is aligned to a power of two that is at least an element, where it is contiguous."""
    operand = plan.config.operands[name]
    if name == "c" and plan.config.c is None:
        return None
    size = operand.type.unpacked_bytes
    allowed = (size,) if operand.major == "any" else tuple(align for align in DIRECT_ALIGNS if align >= size)
    if operand.align in allowed:
        return None
    how = "with any strides" if operand.major == "any" else f"and {operand.major}-major"
    return (
        f"{name.upper()} is {operand.dtype} {how}, and aligned to {operand.align} bytes; it must be {one_of(allowed)}"
    )


def _fp8(plan: DirectPlan) -> str | None:
    """fp8 operands are for targets that convert them."""
    arch = plan.config.arch
    found = [name.upper() for name, operand in plan.config.inputs.items() if operand.dtype in FP8]
    if not found or arch in FP8_ARCHS:
        return None
    return f"{' and '.join(found)} is fp8, which {arch} cannot convert; it needs {one_of(FP8_ARCHS)}"


def _conversion(plan: DirectPlan) -> str | None:
    """D is of a type that the target converts to."""
    d, arch = plan.config.d.dtype, plan.config.arch
    archs = CONVERTING.get(d)
    if archs is None or arch in archs:
        return None
    return f"D is {d}, to which {arch} cannot convert; it needs {one_of(archs)}"


def direct_rules(plan: type[DirectPlan]) -> tuple[Rule, ...]:
    """What a family that needs no TMA demands."""
    family, types = plan.family, ("arch", "a.dtype", "b.dtype")
    accesses = "CUDA Programming Guide, device memory accesses: an access of 1 to 16 bytes is aligned to its size"
    conversions = "PTX ISA, cvt: .bf16 needs sm_80, .e4m3x2 and .e5m2x2 sm_89"
    return (
        Rule(f"{family}-fp8", types, _fp8, "PTX ISA, cvt: .e4m3x2 and .e5m2x2 need sm_89", plan),
        Rule(f"{family}-conversion", ("d.dtype", "arch"), _conversion, conversions, plan),
        converted(f"{family}-epilogue-types", plan),
        *(
            Rule(
                f"{family}-alignment-{operand}",
                (f"{operand}.align", f"{operand}.major", f"{operand}.dtype"),
                functools.partial(_alignment, operand),
                accesses,
                plan,
            )
            for operand in "abcd"
        ),
        Rule(f"{family}-cluster", ("cluster.m", "cluster.n"), _cluster, "gemmill: CTAs share nothing", plan),
        Rule(
            f"{family}-plain",
            ("promote", "a.scale", "b.scale"),
            _plain,
            "gemmill: block scales and two-level accumulation are the wgmma family's",
            plan,
        ),
    )


DIRECT_DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {**{f"{operand}.align": DIRECT_ALIGNS for operand in "abcd"}, "cluster.m": (1,), "cluster.n": (1,)}
)
"""The values that each of these families takes, of fields that have no words."""
