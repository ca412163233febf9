"""Architectures that kernels are emitted for, and GPUs whose figures the analytic selector uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ArchName = Literal["sm90a"]
"""Names of :data:`ARCHS`."""


@dataclass(frozen=True, slots=True)
class Arch:
    """Limits of one compilation target (CUDA C++ Programming Guide, "Compute Capabilities")."""

    name: str
    """Name in manifests and kernel names."""
    nvrtc: str
    """Value of NVRTC's ``--gpu-architecture``."""
    capability: tuple[int, int]
    """Compute capability a GPU must have."""
    shared_bytes: int
    """Most dynamic shared memory of a block."""
    registers: int
    """32-bit registers of an SM."""
    max_thread_registers: int
    """Most registers of one thread."""
    max_cluster: int
    """Most blocks of a portable cluster."""


ARCHS: Mapping[str, Arch] = MappingProxyType(
    {a.name: a for a in (Arch("sm90a", "sm_90a", (9, 0), 232_448, 65_536, 255, 8),)}
)
"""Every compilation target, by name."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Rates of one GPU model, for the analytic selector."""

    name: str
    """Prefix of the name the driver reports."""
    capability: tuple[int, int]
    """Compute capability."""
    sms: int
    """Streaming multiprocessors."""
    clock_ghz: float
    """SM clock sustained under tensor-core load."""
    dram_gbps: float
    """DRAM bandwidth in GB/s that a copy reaches."""
    l2_gbps: float
    """Rate at which TMA brings operands from L2 to all SMs, in GB/s; above plain loads, as requests coalesce."""
    l2_bytes: int
    """L2 capacity."""


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        g.name: g
        for g in (
            # H200: SMs, L2 and copy bandwidth measured 2026-11 (docs/performance.md); H100: NVIDIA's data sheet.
            Gpu("NVIDIA H200", (9, 0), 132, 1.70, 4300.0, 9300.0, 60 << 20),
            Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.70, 3000.0, 9300.0, 50 << 20),
            Gpu("NVIDIA H100 PCIe", (9, 0), 114, 1.40, 1800.0, 6600.0, 50 << 20),
        )
    }
)
"""GPUs with figures of their own, by the name the driver reports; ``DEFAULT_GPU`` stands in for others."""

DEFAULT_GPU = GPUS["NVIDIA H200"]
"""What a selector without a GPU assumes."""
