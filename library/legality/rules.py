"""Legality: every reason for which a config cannot become a kernel, each stated once and with a stable id.

A rule is plain Python over the few fields that it declares. Loader, expander, selector and docs all use these; kernel
sets evaluate a rule once for each distinct combination of its fields (:mod:`gemmill.library.manifest.grid`). What
holds for all kernels is here, the rest with its family (:mod:`gemmill.library.families`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.field_table import TABLE
from gemmill.library.config.fields import ConfigView, Fields, Value, fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.parse import LINEAR, is_gated, parse, staged_formats
from gemmill.library.families.families import FAMILIES, family_of, new_plan, plan_of
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.legality.nearest_change import nearest_change
from gemmill.library.legality.rule import Rule, rule

SWIZZLES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a rule refuses a config, and the nearest legal change."""

    rule: str
    """Id of the rule."""
    fields: tuple[str, ...]
    """The fields the rule reads."""
    message: str
    """What is wrong, with the values on both sides."""
    fix: Mapping[str, Value] | None
    """The fields to change, and to what, for a config that breaks no rule at all; None when none was found."""

    def __str__(self) -> str:
        if self.fix is None:
            return f"{self.rule}: {self.message}"
        changes = ", ".join(f"{name} = {value}" for name, value in self.fix.items())
        return f"{self.rule}: {self.message}; nearest legal change: {changes}"


@rule("family", ("schedule", "arch"), "gemmill: the kernel templates in emitters/include/gemmill/kernel", KernelPlan)
def _family(plan: KernelPlan) -> str | None:
    """There are kernels of the schedule, and they are made for the target."""
    schedule, arch, archs = plan.config.schedule, plan.config.arch, family_of(plan.config).archs
    return None if arch in archs else f"{schedule} kernels are made for {one_of(archs)}, not for {arch}"


@rule(
    "scheduler-swizzle",
    ("scheduler.swizzle_size",),
    "gemmill: sizes of the groups that the tile scheduler walks",
    KernelPlan,
)
def _swizzle(plan: KernelPlan) -> str | None:
    """The swizzle size is a power of two up to 16."""
    config = plan.config
    swizzle = config.scheduler.swizzle_size
    return None if swizzle in SWIZZLES else f"swizzle_size is {swizzle}; it must be {one_of(SWIZZLES)}"


@rule(
    "scheduler-splits",
    ("scheduler.splits", "scheduler.decomposition"),
    "gemmill: emitters/include/gemmill/scheduler",
    KernelPlan,
)
def _splits(plan: KernelPlan) -> str | None:
    """Splits are as many as the decomposition takes, and one where it does not share K."""
    splits, decomposition = plan.config.scheduler.splits, plan.config.scheduler.decomposition
    allowed = decomposition_of(plan.config).splits
    if splits in allowed:
        return None
    if len(allowed) == 1:
        return f"splits is {splits}; it must be {allowed[0]} where the decomposition is {decomposition}"
    return f"splits is {splits}; {decomposition} kernels take {allowed[0]} to {allowed[-1]}"


@rule(
    "decomposition",
    ("scheduler.decomposition", "schedule"),
    "gemmill: the tile schedulers that exist; stream-K's units differ in K, so pingpong's turns would not be even",
    KernelPlan,
)
def _decomposition(plan: KernelPlan) -> str | None:
    """The decomposition of K is one that the schedule has."""
    config = plan.config
    decomposition, known = config.scheduler.decomposition, new_plan(config).decompositions
    if decomposition in known:
        return None
    return f"there is no {decomposition} decomposition of {config.schedule} kernels; it must be {one_of(known)}"


@rule("batching", ("scheduler.batching", "schedule"), "gemmill: the tile schedulers that exist", KernelPlan)
def _batching(plan: KernelPlan) -> str | None:
    """Batches are of a kind that the family has."""
    batching, known = plan.config.scheduler.batching, family_of(plan.config).batchings
    if batching in known:
        return None
    return f"{plan.config.schedule} kernels have no {batching} batching, only {one_of(known)}"


@rule("epilogue-c", ("c.dtype", "epilogue"), "gemmill: C is loaded where an expression reads it", KernelPlan)
def epilogue_c(plan: KernelPlan) -> str | None:
    """There is a C if and only if the epilogue reads one."""
    config = plan.config
    epilogue, has_c = config.epilogue, config.c is not None
    if epilogue == LINEAR or parse(epilogue).reads_c == has_c:
        return None
    return f"there is {'a' if has_c else 'no'} C, which the epilogue {'never reads' if has_c else 'reads'}: {epilogue}"


@rule("epilogue-integers", ("d.dtype", "epilogue"), "gemmill: expressions compute in f32", KernelPlan)
def _epilogue_integers(plan: KernelPlan) -> str | None:
    """A D of integers has the linear epilogue."""
    config = plan.config
    if config.epilogue == LINEAR or config.d.dtype != "s32":
        return None
    return f"D is s32, which only the linear epilogue writes exactly; expressions compute in f32: {config.epilogue}"


@rule(
    "epilogue-family",
    ("schedule", "epilogue", "arch"),
    "PTX ISA, max.NaN and tanh.approx: sm_80 and sm_75; gemmill: kernels that take expressions",
    KernelPlan,
)
def _epilogue_family(plan: KernelPlan) -> str | None:
    """An epilogue asks for nothing that the family, or its target, lacks."""
    return new_plan(plan.config).lacks_for_epilogue if plan.config.epilogue != LINEAR else None


@rule(
    "epilogue-groups",
    ("scheduler.batching", "epilogue"),
    "gemmill: TMA clips where a matrix ends, not where a group does; arrays list the addresses of A to D alone",
    KernelPlan,
)
def _epilogue_groups(plan: KernelPlan) -> str | None:
    """All but strided batches have epilogues without matrices that TMA moves, arrays the linear one."""
    config = plan.config
    batching, epilogue = config.scheduler.batching, config.epilogue
    if epilogue == LINEAR or batching == "strided":
        return None
    if batching == "array":
        return f"array kernels have the linear epilogue only: {epilogue}"
    if any(staged_formats(epilogue)):
        return f"{batching} kernels move no matrices of an epilogue by TMA; leave out their majors: {epilogue}"
    return None


@rule(
    "epilogue-gated",
    ("tile.n", "scheduler.decomposition", "epilogue"),
    "gemmill: partial sums have the columns of D",
    KernelPlan,
)
def _epilogue_gated(plan: KernelPlan) -> str | None:
    """Where an epilogue pairs columns, tile N is a multiple of 16 and no second kernel applies it."""
    config = plan.config
    if not is_gated(config.epilogue):
        return None
    if config.tile.n % 16:
        return f"tile N is {config.tile.n}, and the epilogue pairs columns: it must be a multiple of 16"
    if not decomposition_of(config).has_second_kernel:
        return None
    return f"the epilogue pairs columns, which the second kernel of split-K does not: {config.epilogue}"


@rule(
    "epilogue-scales",
    ("a.scale", "b.scale", "epilogue"),
    "gemmill: a call passes scales of an operand once, as a_scale or b_scale",
    KernelPlan,
)
def _epilogue_scales(plan: KernelPlan) -> str | None:
    """An epilogue has no ``a_scale`` or ``b_scale`` where the main loop reads scales by that name."""
    config = plan.config
    if config.epilogue == LINEAR:
        return None
    names = [operand.name for operand in parse(config.epilogue).operands]
    for name, scale in zip(SCALES, (config.a.scale, config.b.scale), strict=True):
        if name in names and scale != "none":
            return f"{name} is the {scale} scale of the main loop; name it otherwise in the epilogue: {config.epilogue}"
    return None


RULES: tuple[Rule, ...] = (
    _family,
    _swizzle,
    _decomposition,
    _splits,
    _batching,
    _epilogue_gated,
    _epilogue_integers,
    _epilogue_groups,
    _epilogue_scales,
    epilogue_c,
    _epilogue_family,
    *itertools.chain.from_iterable(family.rules for family in FAMILIES.values()),
)
"""Every legality rule, in the order in which they are reported: what holds for all kernels, then family by family."""


def _merged_domains() -> dict[str, tuple[Value, ...]]:
    """The values that any family takes, of the fields that have no words."""
    merged: dict[str, dict[Value, None]] = {}
    for family in FAMILIES.values():
        for name, values in family.domains.items():
            merged.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in merged.items()}


DOMAINS: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        **{row.name: row.values for row in TABLE.values() if row.values},
        **_merged_domains(),
        "scheduler.swizzle_size": SWIZZLES,
        "scheduler.splits": (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256),
    }
)
"""The values a fix may give to a field."""


def verdicts(config: GemmConfig | Fields) -> list[Verdict]:
    """All rules that a config breaks, each with the nearest legal change. Empty for a legal config."""
    fields = fields_of(config) if isinstance(config, GemmConfig) else config
    return [Verdict(rule.id, rule.fields, finding, nearest_fix(rule, fields)) for rule, finding in broken(config)]


def broken(config: GemmConfig | Fields) -> list[tuple[Rule, str]]:
    """The rules that a config breaks, and what is wrong; without the search for legal changes."""
    plan = plan_of(config) if isinstance(config, GemmConfig) else new_plan(ConfigView(config))
    findings = ((rule, rule.check(plan)) for rule in RULES if rule.family in (None, plan.family))
    return [(rule, finding) for rule, finding in findings if finding is not None]


def legal(config: GemmConfig | Fields) -> bool:
    """Whether a config breaks no rule."""
    plan = new_plan(config if isinstance(config, GemmConfig) else ConfigView(config))
    return all(rule.check(plan) is None for rule in RULES if rule.family in (None, plan.family))


def nearest_fix(rule: Rule, fields: Fields) -> Mapping[str, Value] | None:
    """The smallest change after which a config that breaks ``rule`` breaks no rule at all; None when none was found.

    Changes as few of the rule's own fields as it can. What else is broken, or breaks by that, is mended in turn.
    """
    fixed = dict(fields)
    config = ConfigView(fixed)
    for target in (rule, *RULES):
        if target.allows(config):
            continue
        unbroken = [other for other in RULES if other.allows(config)]
        earlier = [other for other in RULES[: RULES.index(target)] if other in unbroken]
        change = nearest_change(target, fixed, unbroken, DOMAINS) or nearest_change(target, fixed, earlier, DOMAINS)
        if change is None:
            return None
        fixed.update(change)
    if not legal(config):
        return None
    # A later change may have made an earlier one needless, and to take one back may make another so.
    while needless := [n for n in fixed if fixed[n] != fields[n] and legal({**fixed, n: fields[n]})]:
        fixed[needless[0]] = fields[needless[0]]
    return {name: value for name, value in fixed.items() if value != fields[name]}
