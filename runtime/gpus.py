"""The GPU of this machine, as far as kernels are chosen for it."""

from __future__ import annotations

from gemmill.library.arch import DEFAULT_GPU, Gpu
from gemmill.library.errors import DeviceError
from gemmill.runtime import driver
from gemmill.runtime.select.gpus import figures, with_sms


def detect(device: int = 0) -> Gpu:
    """Figures of a GPU of this machine, with the SMs that it has; ``DEFAULT_GPU`` where there is none."""
    try:
        name = driver.device_name(device)
        return with_sms(figures(name, driver.capability(device)), driver.sm_count(device), name)
    except DeviceError:
        return DEFAULT_GPU
