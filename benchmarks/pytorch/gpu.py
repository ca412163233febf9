"""What the GPU does: its energy, by NVML (``pip install nvidia-ml-py``), and kernels in a profile. Does not import
gemmill, so that a process without it can use this."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch


@cache
def _millijoules() -> Callable[[], int]:
    """NVML's query of the energy of the current GPU."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
    return partial(nvml.nvmlDeviceGetTotalEnergyConsumption, gpu)


def joules() -> float:
    """Energy in joules that the GPU has used since the driver was loaded. NVML updates it ten times a second or more
    often. 0 without a GPU."""
    return _millijoules()() / 1000 if torch.cuda.is_available() else 0.0


def kernels_of(profile: Any, most: int = 24) -> list[tuple[str, int, float]]:
    """Names of the kernels with most time, how often they ran, and their milliseconds in all."""
    rows = [
        (event.key[:120], event.count, round(event.self_device_time_total / 1000, 3))
        for event in profile.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA and event.self_device_time_total
    ]
    return sorted(rows, key=lambda row: -row[2])[:most]
