"""The kernel families, and what any kernel asks of a CTA."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.fields import Fields, part
from gemmill.library.config.model import FAMILIES, FamilyName
from gemmill.library.families import gemv, mma, simt
from gemmill.library.families.family import Family
from gemmill.library.families.wgmma.family import FAMILY as WGMMA

FAMILY: Mapping[FamilyName, Family] = MappingProxyType(
    {"wgmma": WGMMA, "mma": mma.FAMILY, "simt": simt.FAMILY, "gemv": gemv.FAMILY}
)
"""Every family that has kernels, in the order in which their rules are reported."""
MIN_STAGES = 2
"""The least stages of a pipeline."""


def family_of(fields: Fields) -> Family | None:
    """The family of a kernel; None where it has no kernels."""
    return FAMILY.get(FAMILIES[str(fields["schedule"])])


def auto_stages(fields: Fields) -> int:
    """Stages that its family would have; may be below 2, and is 0 where there are no such kernels."""
    family = family_of(fields)
    return family.auto_stages(fields) if family else 0


@part
def resolved_stages(fields: Fields) -> int:
    """Stages that ``stages: auto`` stands for: at least 2, so that a rule can say what does not fit."""
    return max(MIN_STAGES, auto_stages(fields))
