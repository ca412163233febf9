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
"""Fewest stages of a pipeline."""


class Family(NamedTuple):
    """One kernel template."""

    plan: type[KernelPlan]
    """The class that computes the resources of its kernels."""
    rules: tuple[Rule, ...]
    """Its legality rules, in the order of reports."""
    domains: Mapping[str, tuple[Value, ...]]
    """The values that it supports, for each integer field."""


FAMILIES: Mapping[FamilyName, Family] = MappingProxyType(
    {
        "wgmma": Family(wgmma_plan.WgmmaPlan, wgmma_rules.RULES, wgmma_rules.DOMAINS),
        "mma": Family(mma.MmaPlan, mma.RULES, mma.DOMAINS),
        "simt": Family(simt.SimtPlan, simt.RULES, simt.DOMAINS),
        "gemv": Family(gemv.GemvPlan, gemv.RULES, gemv.DOMAINS),
    }
)
"""Every family, in the order in which rules are reported."""


def family_of(config: GemmConfig) -> type[KernelPlan]:
    """The plan class of a config's schedule."""
    return FAMILIES[config.family].plan


@lru_cache(1024)
def plan_of(config: GemmConfig) -> KernelPlan:
    """The plan of a config's kernel. Cached."""
    return new_plan(config)


def new_plan(config: GemmConfig) -> KernelPlan:
    """The plan of a config that may change later or that lacks some fields. Not cached."""
    return family_of(config)(config)


def resolved_stages(config: GemmConfig) -> int:
    """The number of stages for ``stages: auto``; at least 2, so that a rule can report a tile that does not fit."""
    return max(MIN_STAGES, new_plan(config).auto_stages)
