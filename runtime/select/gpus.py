"""Properties of GPUs, and of MIG slices and parts of them, for the selector."""

from __future__ import annotations

from gemmill.library.arch import DEFAULT_GPU, GPUS, Gpu

_MIG = " MIG "
"""Part of the names of MIG slices."""


def figures(name: str, capability: tuple[int, int] = DEFAULT_GPU.capability) -> Gpu:
    """Return the row of a GPU by the name from the driver. A GPU without a row gets the default's rates under its own
    name.

    A slice of a GPU (MIG) has the rates of the whole GPU but its own name, so that measurements of one do not apply to
    the other.
    """
    rows = [gpu for prefix, gpu in GPUS.items() if name.startswith(prefix)]
    if not rows:
        return DEFAULT_GPU._replace(name=name, capability=capability)
    row = max(rows, key=lambda gpu: len(gpu.name))
    return row._replace(name=name) if _MIG in name else row


def with_sms(gpu: Gpu, sms: int, name: str) -> Gpu:
    """Return a GPU with another number of SMs than its row: shared rates in proportion, and another name, since there
    are no measurements of it. The memory of a MIG slice scales too."""
    if sms == gpu.sms:
        return gpu
    memory = sms if _MIG in name else gpu.sms
    return gpu._replace(
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
    """Return a GPU for a kernel that uses at most ``sm_count`` of its SMs; None: all."""
    if sm_count is None:
        return gpu
    of_4, of_8 = min(gpu.clusters_of_4, sm_count // 4), min(gpu.clusters_of_8, sm_count // 8)
    return gpu._replace(sms=sm_count, clusters_of_4=of_4, clusters_of_8=of_8)
