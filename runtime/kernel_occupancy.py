"""How many CTAs of a kernel an SM holds: by its cubin, or by the selector's model where there is none."""

from __future__ import annotations

from gemmill.library.config.model import GemmConfig
from gemmill.library.occupancy import Occupancy, occupancy
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.storage.artifact import Artifact


def occupancy_of(artifact: Artifact) -> Occupancy:
    """The occupancy of a compiled kernel."""
    target, used = artifact.config.target, artifact.resources
    # From compute capability 9.0 on, ptxas counts the shared memory that the system reserves as static.
    reserved = target.reserved_bytes if target.capability >= (9, 0) else 0
    shared_bytes = max(0, used.static_shared_bytes - reserved) + used.dynamic_shared_bytes
    return occupancy(target, artifact.launch.threads, used.registers, shared_bytes)


def assumed_occupancy(config: GemmConfig, why: str) -> Occupancy:
    """The occupancy that the selector's model assumes for a kernel that is not compiled, for some reason."""
    return Occupancy(FAMILIES[config.family].ctas_per_sm(config), f"this is assumed from the config, because {why}")
