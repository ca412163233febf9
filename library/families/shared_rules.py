"""What families share: rules on types, and the plan and the rules of the families without TMA."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.field import Value
from gemmill.library.config.fields import member
from gemmill.library.dtypes import FP8, INT8
from gemmill.library.epilogues.parse import LINEAR, is_gated, pairs_rows, parse, staged_formats
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.legality.rule import Rule

D_DTYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("f32", "f16"), ("bf16", "f16", "f32", *FP8)),
        "s32": ("s32", "f32", "bf16", "f16", *INT8),
        "f64": ("f64", "f32"),
    }
)
"""Supported types of D, by the accumulator's type."""
Accumulators = Mapping[tuple[str, str], tuple[str, ...]]
"""Accumulator types by the types of A and B."""
FP8_ARCHS = ("sm89", "sm90", "sm90a", "sm120")
"""Targets that convert from and to fp8 (PTX ISA, "cvt": .e4m3x2 needs sm_89)."""
CONVERTING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bf16": ("sm80", "sm86", *FP8_ARCHS), **dict.fromkeys(FP8, FP8_ARCHS)}
)
"""Targets that convert to a type of D, for the types that not all targets support (PTX ISA, "cvt")."""
DIRECT_ALIGNS = (16, 8, 4, 2, 1)


class DirectPlan(KernelPlan):
    """The plan of a kernel that reads and writes global memory without TMA: ``simt``, ``mma``, ``gemv``."""

    @member
    def lacks_for_epilogue(self) -> str | None:
        """Why the family or the target does not support the epilogue expression; None if it does."""
        config, epilogue = self.config, self.config.epilogue
        if config.arch == "sm70":
            return f"sm70 supports only the {LINEAR} epilogue, not {epilogue}"
        if is_gated(epilogue):
            return f"{config.schedule} kernels do not support an epilogue that pairs columns: {epilogue}"
        if pairs_rows(epilogue):
            return f"{config.schedule} kernels do not support an epilogue that pairs rows: {epilogue}"
        tree = parse(epilogue)
        if tree.scale:
            return f"{config.schedule} kernels do not support an epilogue that scales blocks of columns: {epilogue}"
        if config.arch not in FP8_ARCHS and (used := tree.functions.union(x.dtype for x in tree.operands) & {*FP8}):
            return f"{' and '.join(sorted(used))} is fp8, which {config.arch} does not support: {epilogue}"
        if any(staged_formats(epilogue)):
            return f"{config.schedule} kernels do not use TMA; write x[m, n] without a major: {epilogue}"
        return None


def _multiplied(instruction: str, table: Accumulators, plan: KernelPlan) -> str | None:
    """The family's instruction must support the types of A, B and the accumulator."""
    a, b, accumulator = plan.config.a.dtype, plan.config.b.dtype, plan.config.accumulator
    accumulators = table.get((a, b))
    if accumulators is None:
        pairs = one_of(tuple(f"{a} x {b}" for a, b in table))
        return f"{instruction} does not support {a} x {b}; A x B must be {pairs}"
    if accumulator not in accumulators:
        return f"accumulator is {accumulator}; for {a} x {b} it must be {one_of(accumulators)}"
    return None


def multiplied(rule: str, plan: type[KernelPlan], instruction: str, table: Accumulators, source: str) -> Rule:
    """The rule that the types of A, B and the accumulator must be in ``table``."""
    fields = ("accumulator", "b.dtype", "a.dtype")
    return Rule(rule, fields, functools.partial(_multiplied, instruction, table), source, plan)


def _converted(plan: KernelPlan) -> str | None:
    """The epilogue must support the conversion from the accumulator to D, and the type of C."""
    accumulator, c, d = plan.config.accumulator, plan.config.c, plan.config.d.dtype
    allowed = D_DTYPES.get(accumulator, ("f32",))
    if d not in allowed:
        return f"D is {d}; with accumulator {accumulator} it must be {one_of(allowed)}"
    allowed = (d,) if d in ("s32", "f64") else tuple(dict.fromkeys((d, "f32")))
    if c is not None and c.dtype not in allowed:
        return f"C is {c.dtype}; with D {d} it must be {one_of(allowed)}"
    return None


def converted(rule: str, plan: type[KernelPlan]) -> Rule:
    """The rule on the types of the accumulator, C and D."""
    source = "gemmill: conversions that the epilogue supports"
    return Rule(rule, ("d.dtype", "c.dtype", "accumulator"), _converted, source, plan)


def _cluster(plan: DirectPlan) -> str | None:
    """The cluster must be 1x1."""
    cluster = plan.config.cluster
    if (cluster.m, cluster.n) == (1, 1):
        return None
    return f"cluster is {cluster.m}x{cluster.n}; for {plan.config.schedule} kernels it must be 1x1"


def _plain(plan: DirectPlan) -> str | None:
    """Block scales and two-level accumulation are not supported."""
    config = plan.config
    scaled = [f"{name.upper()}'s scale is {x.scale}" for name, x in config.inputs.items() if x.scale != "none"]
    if scaled:
        return f"{' and '.join(scaled)}; {config.schedule} kernels do not support block scales, so it must be none"
    if config.promote:
        return (
            f"promote is {config.promote}; {config.schedule} kernels do not support two-level accumulation, so it "
            "must be 0"
        )
    return None


def _alignment(name: str, plan: DirectPlan) -> str | None:
    """The alignment must be a power of two from one element to 16 bytes; with major ``any``, one element."""
    operand = plan.config.operands[name]
    if name == "c" and plan.config.c is None:
        return None
    size = operand.type.unpacked_bytes
    allowed = (size,) if operand.major == "any" else tuple(align for align in DIRECT_ALIGNS if align >= size)
    if operand.align in allowed:
        return None
    major = "with major any" if operand.major == "any" else f"and {operand.major}-major"
    return (
        f"{name.upper()} is {operand.dtype} {major}, and aligned to {operand.align} bytes; its alignment must be "
        f"{one_of(allowed)}"
    )


def _fp8(plan: DirectPlan) -> str | None:
    """If A or B is fp8, the target must convert fp8."""
    arch = plan.config.arch
    fp8_operands = [name.upper() for name, operand in plan.config.inputs.items() if operand.dtype in FP8]
    if not fp8_operands or arch in FP8_ARCHS:
        return None
    return f"{arch} does not support fp8 ({' and '.join(fp8_operands)}); arch must be {one_of(FP8_ARCHS)}"


def _conversion(plan: DirectPlan) -> str | None:
    """The target must convert to the type of D."""
    d, arch = plan.config.d.dtype, plan.config.arch
    archs = CONVERTING.get(d)
    if archs is None or arch in archs:
        return None
    return f"D is {d}, which {arch} does not support; arch must be {one_of(archs)}"


def direct_rules(plan: type[DirectPlan]) -> tuple[Rule, ...]:
    """The rules that every family without TMA shares."""
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
        Rule(f"{family}-cluster", ("cluster.m", "cluster.n"), _cluster, "gemmill: CTAs do not cooperate", plan),
        Rule(
            f"{family}-plain",
            ("promote", "a.scale", "b.scale"),
            _plain,
            "gemmill: only the wgmma family has block scales and two-level accumulation",
            plan,
        ),
    )


DIRECT_DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {**{f"{operand}.align": DIRECT_ALIGNS for operand in "abcd"}, "cluster.m": (1,), "cluster.n": (1,)}
)
"""The values that all families without TMA support, for fields that they share."""
