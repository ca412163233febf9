"""Telemetry of a GPU: clocks, power, temperature, throttle reasons.

Reads NVML if ``nvidia-ml-py`` is installed, else ``nvidia-smi``. It never changes a setting.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from gemmill.library.errors import DeviceError

THROTTLE_REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Throttle reasons by bit (nvml.h, ``nvmlClocksEventReason*``), without idle and application clocks."""
SMI_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")


@dataclass(frozen=True, slots=True)
class Reading:
    """State of a GPU at one moment, or the summary of several."""

    sm_mhz: int
    memory_mhz: int
    watts: float
    celsius: int
    throttle: tuple[str, ...]
    """Throttle reasons; empty without throttling."""


class Telemetry(Protocol):
    """A source of readings of one GPU."""

    def driver(self) -> str:
        """Version of the driver."""

    def read(self) -> Reading:
        """The current state of the GPU."""


def open_telemetry(uuid: str) -> Telemetry:
    """The telemetry of a GPU with a UUID such as ``GPU-...``.

    Raises:
        DeviceError: neither NVML nor nvidia-smi can read this GPU.
    """
    try:
        return _Nvml(importlib.import_module("pynvml"), uuid)
    except ImportError:
        return _Smi(uuid)


def summarise(readings: Sequence[Reading]) -> Reading:
    """Medians of the numbers, and all throttle reasons. Needs at least one reading."""
    return Reading(
        round(median(r.sm_mhz for r in readings)),
        round(median(r.memory_mhz for r in readings)),
        round(median(r.watts for r in readings), 1),
        round(median(r.celsius for r in readings)),
        tuple(reason for reason in THROTTLE_REASONS.values() if any(reason in r.throttle for r in readings)),
    )


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """The throttle reasons in NVML's bit mask."""
    return tuple(reason for bit, reason in THROTTLE_REASONS.items() if mask & bit)


class _Nvml:
    def __init__(self, nvml: Any, uuid: str) -> None:
        self.nvml = nvml
        try:
            nvml.nvmlInit()
            self.handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError as error:
            raise DeviceError(f"NVML cannot open GPU {uuid}: {error}") from error

    def driver(self) -> str:
        return str(self.nvml.nvmlSystemGetDriverVersion())

    def read(self) -> Reading:
        nvml = self.nvml
        return Reading(
            self.ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            self.ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            self.ask(nvml.nvmlDeviceGetPowerUsage) / 1000,
            self.ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            throttle_reasons(self.ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)),
        )

    def ask(self, query: Callable[..., int], *arguments: int) -> int:
        """The result of a query; 0 if the GPU does not support it, as in some virtual machines."""
        try:
            return query(self.handle, *arguments)
        except self.nvml.NVMLError:
            return 0


class _Smi:
    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.read()

    def driver(self) -> str:
        return self.query("driver_version")[0]

    def read(self) -> Reading:
        return parse_smi(self.query(*SMI_FIELDS))

    def query(self, *fields: str) -> list[str]:
        command = ["nvidia-smi", "-i", self.uuid, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            raise DeviceError(
                f"cannot read telemetry of GPU {self.uuid}: nvidia-smi: {error}; run `pip install nvidia-ml-py`"
            ) from error
        return [value.strip() for value in done.stdout.strip().split(",")]


def parse_smi(values: Sequence[str]) -> Reading:
    """A reading from nvidia-smi's output for :data:`SMI_FIELDS`; values that a GPU lacks (``[N/A]``) are 0."""
    numbers = [0.0 if value.startswith("[") else float(value) for value in values[:4]]
    mask = 0 if values[4].startswith("[") else int(values[4], 16)
    return Reading(int(numbers[0]), int(numbers[1]), numbers[2], int(numbers[3]), throttle_reasons(mask))
