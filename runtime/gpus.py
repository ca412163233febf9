"""The figures of the GPU at hand, for the selector."""

from __future__ import annotations

from dataclasses import replace

from gemmill.library.arch import DEFAULT_GPU, GPUS, Gpu
from gemmill.library.errors import DeviceError
from gemmill.runtime import driver


def detect(device: int = 0) -> Gpu:
    """Figures of a GPU of this machine, with the SMs that it has; ``DEFAULT_GPU`` where there is none."""
    try:
        own = figures(driver.device_name(device), driver.capability(device))
        return replace(own, sms=driver.sm_count(device))
    except DeviceError:
        return DEFAULT_GPU


def figures(name: str, capability: tuple[int, int] = DEFAULT_GPU.capability) -> Gpu:
    """The row of a GPU by the name the driver reports; the default's rates under its own name if there is no row."""
    rows = [gpu for prefix, gpu in GPUS.items() if name.startswith(prefix)]
    if rows:
        return max(rows, key=lambda gpu: len(gpu.name))
    return replace(DEFAULT_GPU, name=name, capability=capability)
