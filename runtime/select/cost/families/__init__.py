"""The cost of each kernel family, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.config.model import FamilyName
from gemmill.runtime.select.cost.families import gemv, mma_sync, simt, wgmma
from gemmill.runtime.select.cost.families.family import Family

FAMILIES: Mapping[FamilyName, Family] = MappingProxyType(
    {"wgmma": wgmma.FAMILY, "gemv": gemv.FAMILY, "mma": mma_sync.FAMILY, "simt": simt.FAMILY}
)
