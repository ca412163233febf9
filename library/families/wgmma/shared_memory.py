"""Shared memory of a CTA of a WGMMA kernel, each region aligned to 1,024 bytes (the period of the 128-byte swizzle)::

    | D subtiles: consumer warpgroups x buffers | C subtiles | A stages | B stages | scales of stages |
    | sums of slices or of a cluster's CTAs | mbarriers |

A subtile of D is followed by those of the matrices that an epilogue writes by TMA beside it, one of C by those that it
reads.
"""

from __future__ import annotations

from gemmill.library.arch import ARCHS
from gemmill.library.config.fields import Fields, part
from gemmill.library.families.wgmma.ring import bytes_per_stage, max_auto_stages, sums_bytes
from gemmill.library.families.wgmma.subtiles import (
    AUTO_D_BUFFERS,
    MIN_D_BUFFERS,
    c_buffers,
    loaded,
    stored,
    subtile_bytes,
    subtiles,
)
from gemmill.library.families.wgmma.warpgroups import storing_warpgroups
from gemmill.library.legality.quantities import integer


@part
def bytes_per_d_buffer(fields: Fields) -> int:
    """Shared memory that a D subtile of every warpgroup that stores takes."""
    return storing_warpgroups(fields) * subtile_bytes(fields, stored(fields))


@part
def fixed_bytes(fields: Fields) -> int:
    """Shared memory beside stages and D subtiles: C subtiles, sums of others, and mbarriers of those and of turns."""
    per_c_buffer = storing_warpgroups(fields) * (subtile_bytes(fields, loaded(fields)) + 8)
    return c_buffers(fields) * per_c_buffer + sums_bytes(fields)


def stages_room(fields: Fields) -> int:
    """Shared memory for stages beside the fewest D subtiles; below 0 where these do not fit."""
    capacity = ARCHS[str(fields["arch"])].shared_bytes
    return capacity - fixed_bytes(fields) - MIN_D_BUFFERS * bytes_per_d_buffer(fields)


def auto_stages(fields: Fields) -> int:
    """Stages that ``stages: auto`` stands for: the most that fit beside two D subtiles, up to :func:`max_auto_stages`.

    It may be below 2.
    """
    room = stages_room(fields) - (AUTO_D_BUFFERS - MIN_D_BUFFERS) * bytes_per_d_buffer(fields)
    return max(0, min(max_auto_stages(fields), room // bytes_per_stage(fields)))


def d_buffers(fields: Fields) -> int:
    """D subtiles a warpgroup has in flight: as many as the stages leave room for, up to two or all of a tile."""
    spare = stages_room(fields) - integer(fields, "stages") * bytes_per_stage(fields)
    extra = max(0, spare) // bytes_per_d_buffer(fields)
    return min(max(AUTO_D_BUFFERS, subtiles(fields)), MIN_D_BUFFERS + extra)


def shared_bytes(fields: Fields) -> int:
    """Dynamic shared memory of a CTA."""
    stages, buffers = integer(fields, "stages"), d_buffers(fields)
    return stages * bytes_per_stage(fields) + buffers * bytes_per_d_buffer(fields) + fixed_bytes(fields)
