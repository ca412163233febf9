"""The legality rules: every reason why a config cannot become a kernel, each with a stable id.

A rule is a Python function of the few fields that it declares. The manifest loader, the selector and the docs all use
the same rules. Kernel sets evaluate a rule once for each distinct combination of its fields
(:mod:`gemmill.library.manifest.grid`). This module holds the rules for all kernels; the rules of a kernel family are in
:mod:`gemmill.library.families`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gemmill.library.config.batchings import GROUPED_EXTENT
from gemmill.library.config.domains import one_of
from gemmill.library.config.field_table import TABLE
from gemmill.library.config.fields import ConfigView, Fields, Value, fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.parse import LINEAR, is_gated, pairs_rows, parse, staged_formats
from gemmill.library.families.families import FAMILIES, family_of, new_plan, plan_of
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.legality.nearest_change import nearest_change
from gemmill.library.legality.rule import Rule, rule
from gemmill.library.problem import upconverts_a

SWIZZLES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule that a config breaks, the reason, and the nearest legal change."""

    rule: str
    """Id of the rule."""
    fields: tuple[str, ...]
    """The fields that the rule reads."""
    message: str
    """What is wrong, with the actual and the allowed values."""
    fix: Mapping[str, Value] | None
    """The fields to change, with their new values, so that the config breaks no rule; None if no change was found."""

    def __str__(self) -> str:
        if self.fix is None:
            return f"{self.rule}: {self.message}"
        changes = ", ".join(f"{name} = {value}" for name, value in self.fix.items())
        return f"{self.rule}: {self.message}; nearest legal change: {changes}"


@rule("family", ("schedule", "arch"), "gemmill: kernel templates in emitters/include/gemmill/kernel", KernelPlan)
def _family(plan: KernelPlan) -> str | None:
    """The target architecture must support the schedule."""
    schedule, arch, archs = plan.config.schedule, plan.config.arch, family_of(plan.config).archs
    return None if arch in archs else f"arch is {arch}; {schedule} kernels support {one_of(archs)}"


@rule(
    "scheduler-swizzle",
    ("scheduler.swizzle_size",),
    "gemmill: group sizes of the tile scheduler",
    KernelPlan,
)
def _swizzle(plan: KernelPlan) -> str | None:
    """The swizzle size must be a power of two up to 16."""
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
    """``splits`` must be 2 to 4 for the cluster decomposition, and 1 for all others."""
    splits, decomposition = plan.config.scheduler.splits, plan.config.scheduler.decomposition
    allowed = decomposition_of(plan.config).splits
    if splits in allowed:
        return None
    if len(allowed) == 1:
        return f"splits is {splits}; it must be {allowed[0]} when the decomposition is {decomposition}"
    return f"splits is {splits}; {decomposition} kernels support {allowed[0]} to {allowed[-1]}"


@rule(
    "decomposition",
    ("scheduler.decomposition", "schedule"),
    "gemmill: available tile schedulers; stream-K work units differ in K, so pingpong warpgroups would not alternate",
    KernelPlan,
)
def _decomposition(plan: KernelPlan) -> str | None:
    """The schedule must support the decomposition of K."""
    config = plan.config
    decomposition, supported = config.scheduler.decomposition, new_plan(config).decompositions
    if decomposition in supported:
        return None
    return f"decomposition is {decomposition}; {config.schedule} kernels support only {one_of(supported)}"


@rule("batching", ("scheduler.batching", "schedule"), "gemmill: available tile schedulers", KernelPlan)
def _batching(plan: KernelPlan) -> str | None:
    """The kernel family must support the batching."""
    batching, supported = plan.config.scheduler.batching, family_of(plan.config).batchings
    if batching in supported:
        return None
    return f"batching is {batching}; {plan.config.schedule} kernels support only {one_of(supported)}"


@rule("rows", ("scheduler.rows", "schedule"), "gemmill: available copies to shared memory", KernelPlan)
def _rows(plan: KernelPlan) -> str | None:
    """The kernel family must support the way to find rows of A."""
    rows, supported = plan.config.scheduler.rows, family_of(plan.config).rows
    if rows in supported:
        return None
    return f"rows is {rows}; {plan.config.schedule} kernels support only {one_of(supported)}"


@rule("symmetry", ("scheduler.symmetry", "schedule"), "gemmill: available tile schedulers", KernelPlan)
def _symmetry(plan: KernelPlan) -> str | None:
    """The kernel family must support the choice of output tiles."""
    symmetry, supported = plan.config.scheduler.symmetry, family_of(plan.config).symmetries
    if symmetry in supported:
        return None
    return f"symmetry is {symmetry}; {plan.config.schedule} kernels support only {one_of(supported)}"


@rule("epilogue-c", ("c.dtype", "epilogue"), "gemmill: a kernel loads C only if its epilogue reads it", KernelPlan)
def epilogue_c(plan: KernelPlan) -> str | None:
    """A config must have a C if its epilogue reads C, and no C otherwise."""
    config = plan.config
    epilogue, has_c = config.epilogue, config.c is not None
    if epilogue == LINEAR or parse(epilogue).reads_c == has_c:
        return None
    if has_c:
        return f"the config has a C, which the epilogue does not read: {epilogue}"
    return f"the epilogue reads C, but the config has none: {epilogue}"


@rule("epilogue-integers", ("d.dtype", "epilogue"), "gemmill: f32 does not hold all s32", KernelPlan)
def _epilogue_integers(plan: KernelPlan) -> str | None:
    """If D is s32, the epilogue must be linear, or compute in integers."""
    config = plan.config
    if config.epilogue == LINEAR or config.d.dtype != "s32" or parse(config.epilogue).is_integral:
        return None
    return (
        "D is s32; the epilogue must be linear, or compute in integers: operands of s32, s8 or u8, whole constants, "
        f"and + - * min max abs relu clamp where, without alpha and further outputs: {config.epilogue}"
    )


@rule(
    "epilogue-family",
    ("schedule", "epilogue", "arch"),
    "PTX ISA, max.NaN and tanh.approx: sm_80 and sm_75; gemmill: kernels that take expressions",
    KernelPlan,
)
def _epilogue_family(plan: KernelPlan) -> str | None:
    """The kernel family and the target must support every operation of the epilogue."""
    return new_plan(plan.config).lacks_for_epilogue if plan.config.epilogue != LINEAR else None


@rule(
    "epilogue-groups",
    ("scheduler.batching", "epilogue"),
    "gemmill: TMA clips at the end of a matrix, not of a group; array batching has addresses of A, B, C and D only",
    KernelPlan,
)
def _epilogue_groups(plan: KernelPlan) -> str | None:
    """Only strided batching supports epilogue matrices moved by TMA; array batching needs the linear epilogue, and with
    groups along N the epilogue must not pair columns."""
    config = plan.config
    batching, epilogue = config.scheduler.batching, config.epilogue
    if epilogue == LINEAR or batching == "strided":
        return None
    if batching == "array":
        return f"array batching supports only the linear epilogue, not {epilogue}"
    if is_gated(epilogue) and GROUPED_EXTENT.get(batching) == "n":
        return f"{batching} batching does not support an epilogue that pairs columns: {epilogue}"
    if any(staged_formats(epilogue)):
        return (
            f"{batching} batching does not support epilogue matrices moved by TMA; write x[m, n] without a major: "
            f"{epilogue}"
        )
    return None


@rule(
    "epilogue-gated",
    ("tile.n", "scheduler.decomposition", "scheduler.batching", "epilogue"),
    "gemmill: the partial sums of split-K have the extents of D; groups along M end at any row",
    KernelPlan,
)
def _epilogue_gated(plan: KernelPlan) -> str | None:
    """If the epilogue pairs columns, tile N must be a multiple of 16. If it pairs columns or rows, the decomposition
    must not be split-K. If it pairs rows, groups must not lie along M."""
    config = plan.config
    if not (paired := "columns" * is_gated(config.epilogue) or "rows" * pairs_rows(config.epilogue)):
        return None
    if paired == "rows" and config.scheduler.batching in ("grouped", "masked"):
        return f"{config.scheduler.batching} batching does not support an epilogue that pairs rows: {config.epilogue}"
    if paired == "columns" and config.tile.n % 16:
        return f"tile N is {config.tile.n}; for an epilogue that pairs columns it must be a multiple of 16"
    if not decomposition_of(config).has_second_kernel:
        return None
    return f"split-K does not support an epilogue that pairs {paired}: {config.epilogue}"


@rule(
    "epilogue-scales",
    ("a.scale", "b.scale", "a.dtype", "b.dtype", "epilogue"),
    "gemmill: a_scale and b_scale each name one argument of a call",
    KernelPlan,
)
def _epilogue_scales(plan: KernelPlan) -> str | None:
    """The epilogue must not use the name ``a_scale`` or ``b_scale`` if the main loop reads scales with that name: the
    other one for a narrow A, since calls have narrow weights as ``b``."""
    config = plan.config
    if config.epilogue == LINEAR:
        return None
    names = [operand.name for operand in parse(config.epilogue).operands]
    scales = config.a.scale, config.b.scale
    for name, scale in zip(
        SCALES[::-1] if upconverts_a(config.a.dtype, config.b.dtype) else SCALES, scales, strict=True
    ):
        if name in names and scale != "none":
            return (
                f"{name} already names the {scale} scales that the main loop reads; use another name in the epilogue: "
                f"{config.epilogue}"
            )
    return None


RULES: tuple[Rule, ...] = (
    _family,
    _swizzle,
    _decomposition,
    _splits,
    _batching,
    _rows,
    _symmetry,
    _epilogue_gated,
    _epilogue_integers,
    _epilogue_groups,
    _epilogue_scales,
    epilogue_c,
    _epilogue_family,
    *itertools.chain.from_iterable(family.rules for family in FAMILIES.values()),
)
"""Every legality rule in the order of reports: first the rules for all kernels, then those of each family."""


def _merged_domains() -> dict[str, tuple[Value, ...]]:
    """The values that at least one family supports, for each integer field."""
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
"""The values that a fix may assign to each field."""


def verdicts(config: GemmConfig | Fields) -> list[Verdict]:
    """All rules that a config breaks, each with the nearest legal change; empty for a legal config."""
    fields = fields_of(config) if isinstance(config, GemmConfig) else config
    return [Verdict(rule.id, rule.fields, finding, nearest_fix(rule, fields)) for rule, finding in broken(config)]


def broken(config: GemmConfig | Fields) -> list[tuple[Rule, str]]:
    """The rules that a config breaks, each with its message; unlike :func:`verdicts`, without legal changes."""
    plan = plan_of(config) if isinstance(config, GemmConfig) else new_plan(ConfigView(config))
    findings = ((rule, rule.check(plan)) for rule in RULES if rule.family in (None, plan.family))
    return [(rule, finding) for rule, finding in findings if finding is not None]


def legal(config: GemmConfig | Fields) -> bool:
    """Whether a config breaks no rule."""
    plan = new_plan(config if isinstance(config, GemmConfig) else ConfigView(config))
    return all(rule.check(plan) is None for rule in RULES if rule.family in (None, plan.family))


def nearest_fix(rule: Rule, fields: Fields) -> Mapping[str, Value] | None:
    """The smallest change after which a config that breaks ``rule`` breaks no rule; None if no change was found.

    It changes as few of the rule's own fields as possible, then repairs each other rule that is or becomes broken.
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
    # A later change can make an earlier one unnecessary, and undoing one can make another unnecessary.
    while needless := [n for n in fixed if fixed[n] != fields[n] and legal({**fixed, n: fields[n]})]:
        fixed[needless[0]] = fields[needless[0]]
    return {name: value for name, value in fixed.items() if value != fields[name]}
