"""Compilation targets, and GPUs with figures for the selector's model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from gemmill.library.errors import DeviceError
from gemmill.library.wording import one_of, suggest

ArchName = Literal["sm70", "sm80", "sm86", "sm89", "sm90", "sm90a", "sm120"]
"""Names of :data:`ARCHS`."""

L2_LINE, L2_SECTOR = 128, 32
"""Bytes of an L2 line and of an L2 sector."""
TMA_MAX_STRIDE = 1 << 40
"""TMA needs strides in bytes below this (CUDA driver API, ``cuTensorMapEncodeTiled``)."""


class Arch(NamedTuple):
    """Limits of one compilation target (CUDA C++ Programming Guide, "Compute Capabilities")."""

    name: str
    """Name in manifests and kernel names."""
    nvrtc: str
    """Value of NVRTC's ``--gpu-architecture``."""
    capability: tuple[int, int]
    """Compute capability that a GPU must have."""
    shared_bytes: int
    """Most dynamic shared memory of a CTA in bytes."""
    sm_threads: int
    """Most threads of an SM."""
    sm_ctas: int
    """Most CTAs of an SM."""
    last_cuda: int | None = None
    """The last major version of CUDA that supports it; None if all supported versions do."""

    @property
    def reserved_bytes(self) -> int:
        """Shared memory that the system reserves for each CTA; an SM has one such reserve more than a CTA may use."""
        return 1024 if self.capability >= (8, 0) else 0


ARCHS: Mapping[str, Arch] = MappingProxyType(
    {
        a.name: a
        for a in (
            Arch("sm70", "sm_70", (7, 0), 98_304, 2048, 32, last_cuda=12),
            Arch("sm80", "sm_80", (8, 0), 166_912, 2048, 32),
            Arch("sm86", "sm_86", (8, 6), 101_376, 1536, 16),
            Arch("sm89", "sm_89", (8, 9), 101_376, 1536, 24),
            Arch("sm90", "sm_90", (9, 0), 232_448, 2048, 32),
            Arch("sm90a", "sm_90a", (9, 0), 232_448, 2048, 32),
            Arch("sm120", "sm_120", (12, 0), 101_376, 1536, 24),
        )
    }
)
"""Every compilation target, by name."""


class Gpu(NamedTuple):
    """Rates of one GPU model, for the selector's model."""

    name: str
    """Prefix of the name the driver reports."""
    capability: tuple[int, int]
    """Compute capability."""
    sms: int
    """Streaming multiprocessors."""
    clusters_of_4: int
    """Clusters of four CTAs that can be resident at a time. A GPC holds only whole clusters."""
    clusters_of_8: int
    """Clusters of eight CTAs that can be resident at a time."""
    clock_ghz: float
    """SM clock sustained under tensor-core load."""
    dram_gbps: float
    """DRAM bandwidth in GB/s that a copy reaches."""
    l2_gbps: float
    """Rate in GB/s at which TMA loads operands from L2 to all SMs. It is above that of plain loads, as requests
    coalesce."""
    l2_bytes: int
    """L2 capacity in bytes."""
    power_tflops: float
    """TFLOP/s that a long GEMM with 16-bit operands sustains at the power limit, regardless of its kernel."""
    mma_rate: float = 1.0
    """Products of an SM's tensor cores per clock, relative to an H200."""
    model: Path | None = None
    """Folder of the models trained on measurements of this GPU; None for the built-in ones."""


def serving(capability: tuple[int, int]) -> tuple[Arch, ...]:
    """The targets whose kernels run on GPUs of a compute capability.

    These are the targets of that capability. If there are none, it is the next lower target of the same major version,
    whose cubins are compatible (CUDA C++ Programming Guide, "Binary Compatibility"), except for targets such as sm_90a.
    """
    exact = tuple(arch for arch in ARCHS.values() if arch.capability == capability)
    portable = [arch for arch in ARCHS.values() if arch.name[-1].isdigit()]
    below = [a for a in portable if a.capability[0] == capability[0] and a.capability[1] < capability[1]]
    return exact or tuple(sorted(below, key=lambda arch: arch.capability)[-1:])


def unknown(name: str) -> str:
    """The hint of an error about an unknown target: the target whose kernels run there, or that there is none."""
    number = re.fullmatch(r"(?:sm|compute)?_?(\d{1,3})(\d)[af]?", name.strip().lower())
    if number is None:
        return suggest(name, ARCHS)
    if (name_here := name.strip().lower().replace("compute", "sm").replace("_", "")) in ARCHS:
        return f", did you mean {name_here}?"
    capability = int(number[1]), int(number[2])
    has = f"compute capability {capability[0]}.{capability[1]}"
    if not (served := serving(capability)):
        return f"; no target supports GPUs of {has}:"
    return f", did you mean {served[-1].name}? Its kernels run on GPUs of {has};"


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        g.name: g
        for g in (
            # H200: fitted to 134 kernels on 29 problems. Other GPUs: the same rates, scaled by NVIDIA data sheets.
            # On the H100 with 80 GB, trees that were fitted there correct the model; the H100 PCIe is not measured.
            Gpu("NVIDIA H200", (9, 0), 132, 30, 15, 1.64, 3950.0, 10600.0, 60 << 20, 755.0),
            Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 30, 15, 1.64, 2750.0, 10600.0, 50 << 20, 755.0),
            Gpu("NVIDIA H100 PCIe", (9, 0), 114, 26, 13, 1.40, 1650.0, 7800.0, 50 << 20, 500.0),
            # Not measured. Published: 78 SMs, 148 TFLOP/s in bf16, 4 TB/s, 400 W. That is a quarter of the products of
            # an H200's SM per clock, at 1.85 GHz. A user of PyTorch reports 142 TFLOP/s. The rest is an H200's, scaled.
            Gpu("NVIDIA H20", (9, 0), 78, 17, 8, 1.85, 3300.0, 6300.0, 60 << 20, 430.0, mma_rate=0.25),
        )
    }
)
"""GPUs with their own figures, by the name that the driver reports. ``DEFAULT_GPU`` replaces all others."""

DEFAULT_GPU = GPUS["NVIDIA H200"]
"""The GPU that a selector assumes if there is none."""


_SHORT = {"NVIDIA H100 80GB HBM3": ("H100", "H100 SXM", "H100 SXM5")}
"""Shorter names of GPUs whose driver name few people write."""


def gpu_named(text: str) -> Gpu:
    """The GPU of :data:`GPUS` with a name that :func:`gpu_name` accepts; DeviceError if there is none."""
    return GPUS[gpu_name(text)]


def gpu_name(text: str, others: Iterable[str] = ()) -> str:
    """The full name of a GPU of :data:`GPUS` or of ``others``. Case and the prefix NVIDIA are ignored, and hyphens
    count as blanks.

    Raises:
        DeviceError: there is no such GPU; the message lists all.
    """
    names = [*dict.fromkeys((*GPUS, *others))]
    for name in names:
        if _plain(text) in map(_plain, (name, *_SHORT.get(name, ()))):
            return name
    listed = [f"{name} ({_SHORT[name][0]})" if name in _SHORT else name for name in names]
    raise DeviceError(f"{text!r:.80} is none of {one_of(listed)}; gemmill has figures only for these")


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", " ").removeprefix("nvidia ")
