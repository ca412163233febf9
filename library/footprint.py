"""The kernel families, and what any kernel asks of a block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from gemmill.library.config import FAMILIES, FamilyName
from gemmill.library.families import gemv, mma, simt, wgmma
from gemmill.library.families.family import Family
from gemmill.library.fields import Fields, Value

FAMILY: Mapping[FamilyName, Family] = MappingProxyType(
    {"wgmma": wgmma.FAMILY, "mma": mma.FAMILY, "simt": simt.FAMILY, "gemv": gemv.FAMILY}
)
"""Every family that has kernels, in the order in which their rules are reported."""
MIN_STAGES = 2
"""The least stages of a pipeline."""
AUTO_STAGES_FIELDS: tuple[str, ...] = tuple(
    dict.fromkeys(("schedule", *(name for family in FAMILY.values() for name in family.auto_stages_fields)))
)
"""The fields that :func:`auto_stages` reads."""


def family_of(fields: Fields) -> Family | None:
    """The family of a kernel; None where it has no kernels."""
    return FAMILY.get(FAMILIES[str(fields["schedule"])])


def auto_stages(fields: Fields) -> int:
    """Stages that ``stages: auto`` stands for; 0 where there are no such kernels."""
    return _auto_stages(tuple(fields[name] for name in AUTO_STAGES_FIELDS))


@lru_cache(1 << 16)
def _auto_stages(values: tuple[Value, ...]) -> int:
    """:func:`auto_stages` by the values of its fields: every rule and preset asks anew for the same candidates."""
    fields = dict(zip(AUTO_STAGES_FIELDS, values, strict=True))
    family = family_of(fields)
    return family.auto_stages(fields) if family else 0
