"""The kernel families, and the plan of any kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from gemmill.library.config.field import Value
from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.families import gemv, mma, simt
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.families.wgmma import wgmma_plan, wgmma_rules
from gemmill.library.legality.rule import Rule

MIN_STAGES = 2
"""The least stages of a pipeline."""


class Family(NamedTuple):
    """One kernel template."""

    plan: type[KernelPlan]
    """The plans of its kernels."""
    rules: tuple[Rule, ...]
    """Its legality rules, in the order of reports."""
    domains: Mapping[str, tuple[Value, ...]]
    """The values it takes, of the fields that have no words."""


FAMILIES: Mapping[FamilyName, Family] = MappingProxyType(
    {
        "wgmma": Family(wgmma_plan.WgmmaPlan, wgmma_rules.RULES, wgmma_rules.DOMAINS),
        "mma": Family(mma.MmaPlan, mma.RULES, mma.DOMAINS),
        "simt": Family(simt.SimtPlan, simt.RULES, simt.DOMAINS),
        "gemv": Family(gemv.GemvPlan, gemv.RULES, gemv.DOMAINS),
    }
)
"""Every family, in the order in which their rules are reported."""


def family_of(config: GemmConfig) -> type[KernelPlan]:
    """The plans of the kernels of a config's schedule."""
    return FAMILIES[config.family].plan


@lru_cache(1024)
def plan_of(config: GemmConfig) -> KernelPlan:
    """The plan of a config's kernel."""
    return new_plan(config)


def new_plan(config: GemmConfig) -> KernelPlan:
    """The same of a config whose fields may change, or of which not all are known."""
    return family_of(config)(config)


def resolved_stages(config: GemmConfig) -> int:
    """Stages that ``stages: auto`` stands for: at least 2, so that a rule can say what does not fit."""
    return max(MIN_STAGES, new_plan(config).auto_stages)
