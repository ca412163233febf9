"""The GPU of this machine, as the selector uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmill.library.arch import DEFAULT_GPU, Gpu, serving
from gemmill.library.errors import DeviceError
from gemmill.runtime import driver
from gemmill.runtime.select.gpus import figures, with_sms

if TYPE_CHECKING:
    from gemmill.runtime.storage.remote.protocol import Machine


def detect(device: int = 0) -> Gpu:
    """Return the properties of a GPU of this machine, with its number of SMs; ``DEFAULT_GPU`` where there is none."""
    try:
        name = driver.device_name(device)
        return with_sms(figures(name, driver.capability(device)), driver.sm_count(device), name)
    except DeviceError:
        return DEFAULT_GPU


def machine(gpu: Gpu) -> Machine:
    """Return the description of a GPU and of this machine's driver for requests to a remote."""
    from gemmill.runtime.storage.remote.protocol import Machine

    try:
        cuda = driver.cuda_version()
    except DeviceError:
        cuda = None
    return Machine(gpu.name, tuple(arch.name for arch in serving(gpu.capability)), gpu.sms, cuda)
