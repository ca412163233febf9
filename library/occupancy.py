"""How many CTAs of a kernel an SM holds at a time (CUDA's occupancy calculator, ``cuda_occupancy.h``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmill.library.arch import Arch
from gemmill.library.legality.quantities import SM_PARTS, SM_REGISTERS, align_up


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The CTAs of a kernel that an SM holds."""

    ctas: int
    """Their number; 0: a CTA does not fit."""
    reason: str
    """Why it is this number, or why it is only assumed: the end of a sentence."""


def ctas_by_limit(arch: Arch, threads: int, registers: int, shared_bytes: int) -> Mapping[str, int]:
    """How many CTAs an SM of a target holds by each of its limits.

    Args:
        arch: the target.
        threads: threads of a CTA.
        registers: registers of a thread.
        shared_bytes: static and dynamic shared memory of a CTA, without what the system reserves.
    """
    warps = -(-threads // 32)
    of_warp = align_up(32 * registers, 256)
    resident_warps = SM_PARTS * (SM_REGISTERS // SM_PARTS // of_warp)
    allocated = align_up(shared_bytes + arch.reserved_bytes, 128 if arch.reserved_bytes else 256)
    fits = of_warp * align_up(warps, SM_PARTS) <= SM_REGISTERS
    return {
        "registers": resident_warps // warps if fits else 0,
        "shared memory": (arch.shared_bytes + arch.reserved_bytes) // allocated if allocated else arch.sm_ctas,
        "threads": arch.sm_threads // (32 * warps),
        "CTAs": arch.sm_ctas,
    }


def occupancy(arch: Arch, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of a compiled kernel, with the limits that decide it; arguments as for :func:`ctas_by_limit`."""
    limits = ctas_by_limit(arch, threads, registers, shared_bytes)
    ctas = min(limits.values())
    least = " and ".join(name for name, most in limits.items() if most == ctas)
    uses = f"a CTA has {threads} threads of {registers} registers and {shared_bytes:,} bytes of shared memory"
    return Occupancy(ctas, f"the limit is {least}, since {uses}")
