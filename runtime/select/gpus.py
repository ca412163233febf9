"""The figures of GPUs, slices of them and parts, for the selector."""

from __future__ import annotations

from dataclasses import replace

from gemmill.library.arch import DEFAULT_GPU, GPUS, Gpu

_MIG = " MIG "
"""In the names of slices."""


def figures(name: str, capability: tuple[int, int] = DEFAULT_GPU.capability) -> Gpu:
    """The row of a GPU by the name the driver reports; the default's rates under its own name if there is no row. A
    slice of a GPU (MIG) has the rates of the whole, but a name of its own: what was measured of one is not the other's.
    """
    rows = [gpu for prefix, gpu in GPUS.items() if name.startswith(prefix)]
    if not rows:
        return replace(DEFAULT_GPU, name=name, capability=capability)
    row = max(rows, key=lambda gpu: len(gpu.name))
    return replace(row, name=name) if _MIG in name else row


def with_sms(gpu: Gpu, sms: int, name: str) -> Gpu:
    """A GPU with other SMs than its row has: what they do together in proportion, and a name of its own, as nothing
    was measured of it. Of a slice's memory there is as much less."""
    if sms == gpu.sms:
        return gpu
    memory = sms if _MIG in name else gpu.sms
    return replace(
        gpu,
        name=name,
        sms=sms,
        clusters_of_4=gpu.clusters_of_4 * sms // gpu.sms,
        clusters_of_8=gpu.clusters_of_8 * sms // gpu.sms,
        l2_gbps=gpu.l2_gbps * sms / gpu.sms,
        power_tflops=gpu.power_tflops * sms / gpu.sms,
        dram_gbps=gpu.dram_gbps * memory / gpu.sms,
        l2_bytes=gpu.l2_bytes * memory // gpu.sms,
    )


def with_at_most(gpu: Gpu, sm_count: int | None) -> Gpu:
    """A GPU for a kernel that takes at most some of its SMs; None: all."""
    if sm_count is None:
        return gpu
    of_4, of_8 = min(gpu.clusters_of_4, sm_count // 4), min(gpu.clusters_of_8, sm_count // 8)
    return replace(gpu, sms=sm_count, clusters_of_4=of_4, clusters_of_8=of_8)
