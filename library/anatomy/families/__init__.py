"""How the kernels of each family work, as they say it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.anatomy.families import gemv, mma, simt, wgmma
from gemmill.library.anatomy.families.anatomy import Anatomy
from gemmill.library.config.model import FamilyName

FAMILIES: Mapping[FamilyName, Anatomy] = MappingProxyType(
    {"wgmma": wgmma.ANATOMY, "mma": mma.ANATOMY, "simt": simt.ANATOMY, "gemv": gemv.ANATOMY}
)
"""By family."""
