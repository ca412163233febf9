"""Architectures that kernels are emitted for, and GPUs whose figures the selector's model uses."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from gemmill.library.wording import one_of, suggest

ArchName = Literal["sm70", "sm80", "sm86", "sm89", "sm90", "sm90a", "sm120"]
"""Names of :data:`ARCHS`."""

L2_LINE, L2_SECTOR = 128, 32
"""Bytes of a line of L2, and of its sectors."""
TMA_MAX_STRIDE = 1 << 40
"""Strides in bytes of a tensor that TMA moves are below this (CUDA driver API, ``cuTensorMapEncodeTiled``)."""


class Arch(NamedTuple):
    """Limits of one compilation target (CUDA C++ Programming Guide, "Compute Capabilities")."""

    name: str
    """Name in manifests and kernel names."""
    nvrtc: str
    """Value of NVRTC's ``--gpu-architecture``."""
    capability: tuple[int, int]
    """Compute capability a GPU must have."""
    shared_bytes: int
    """Most dynamic shared memory of a CTA."""
    last_cuda: int | None = None
    """The last major version of CUDA that compiles for it; None where all do."""


ARCHS: Mapping[str, Arch] = MappingProxyType(
    {
        a.name: a
        for a in (
            Arch("sm70", "sm_70", (7, 0), 98_304, last_cuda=12),
            Arch("sm80", "sm_80", (8, 0), 166_912),
            Arch("sm86", "sm_86", (8, 6), 101_376),
            Arch("sm89", "sm_89", (8, 9), 101_376),
            Arch("sm90", "sm_90", (9, 0), 232_448),
            Arch("sm90a", "sm_90a", (9, 0), 232_448),
            Arch("sm120", "sm_120", (12, 0), 101_376),
        )
    }
)
"""Every compilation target, by name."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Rates of one GPU model, for the selector's model."""

    name: str
    """Prefix of the name the driver reports."""
    capability: tuple[int, int]
    """Compute capability."""
    sms: int
    """Streaming multiprocessors."""
    clusters_of_4: int
    """Clusters of four CTAs that are resident at a time: a GPC holds whole clusters only."""
    clusters_of_8: int
    """The same of eight."""
    clock_ghz: float
    """SM clock sustained under tensor-core load."""
    dram_gbps: float
    """DRAM bandwidth in GB/s that a copy reaches."""
    l2_gbps: float
    """Rate at which TMA brings operands from L2 to all SMs, in GB/s; above plain loads, as requests coalesce."""
    l2_bytes: int
    """L2 capacity."""
    power_tflops: float
    """TFLOP/s of 16-bit operands that the power limit lets a long GEMM sustain, whatever its kernel."""
    model: Path | None = None
    """Folder of what was trained on measurements of it; None: what ships."""


def serving(capability: tuple[int, int]) -> tuple[Arch, ...]:
    """The targets whose kernels are for GPUs of a compute capability: its own or, where it has none, that of the next
    below in its generation, whose cubins run there too (CUDA C++ Programming Guide, "Binary Compatibility"), unless
    they were made for one GPU alone."""
    exact = tuple(arch for arch in ARCHS.values() if arch.capability == capability)
    portable = [arch for arch in ARCHS.values() if arch.name[-1].isdigit()]
    below = [a for a in portable if a.capability[0] == capability[0] and a.capability[1] < capability[1]]
    return exact or tuple(sorted(below, key=lambda arch: arch.capability)[-1:])


def unknown(name: str) -> str:
    """What an error says of a name that no target has: the one whose kernels run there, or that none do."""
    number = re.fullmatch(r"(?:sm|compute)?_?(\d{1,3})(\d)[af]?", name.strip().lower())
    if number is None:
        return suggest(name, ARCHS)
    if (name_here := name.strip().lower().replace("compute", "sm").replace("_", "")) in ARCHS:
        return f", did you mean {name_here}?"
    capability = int(number[1]), int(number[2])
    has = f"compute capability {capability[0]}.{capability[1]}"
    if not (served := serving(capability)):
        return f"; no target has kernels that run on GPUs of {has}:"
    return f", did you mean {served[-1].name}? Its kernels run on GPUs of {has};"


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        g.name: g
        for g in (
            # H200: fitted to 134 kernels on 29 problems (docs/performance). The others: the same rates, scaled by
            # NVIDIA's data sheets; on the H100 of 80 GB trees that were fitted there correct what this gives, the other
            # nobody has measured.
            Gpu("NVIDIA H200", (9, 0), 132, 30, 15, 1.64, 3950.0, 10600.0, 60 << 20, 755.0),
            Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 30, 15, 1.64, 2750.0, 10600.0, 50 << 20, 755.0),
            Gpu("NVIDIA H100 PCIe", (9, 0), 114, 26, 13, 1.40, 1650.0, 7800.0, 50 << 20, 500.0),
        )
    }
)
"""GPUs with figures of their own, by the name the driver reports; ``DEFAULT_GPU`` stands in for others."""

DEFAULT_GPU = GPUS["NVIDIA H200"]
"""What a selector without a GPU assumes."""


def gpu_named(text: str) -> Gpu:
    """The GPU with figures of its own of a name, as :func:`full_gpu_name` takes it; LookupError where there is none."""
    try:
        return GPUS[full_gpu_name(text, GPUS)]
    except LookupError as error:
        raise LookupError(f"no GPU with figures of its own: {error.args[0]}") from None


def full_gpu_name(text: str, names: Collection[str]) -> str:
    """The one of some names of GPUs that a text is, whatever the case, with or without the maker's, and with hyphens
    in place of blanks, as shells complete it.

    Raises:
        LookupError: it is none; says which it is part of, or all.
    """
    plain_text = _plain(text)
    for name in names:
        if plain_text in (_plain(name), _plain(name).removeprefix("nvidia ")):
            return name
    near = [name for name in names if plain_text and plain_text in _plain(name)]
    raise LookupError(
        f"{text!r} is {f'part of {one_of(near)}; write one whole' if near else f'none of {one_of([*names])}'}"
    )


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", " ")
