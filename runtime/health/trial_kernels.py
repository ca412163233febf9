"""Compiles one kernel of each family into a scratch store and, where there is a GPU, loads it, runs it and checks its
result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from gemmill.library.arch import ARCHS, serving
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import DeviceError, GemmillError
from gemmill.library.legality.rules import verdicts
from gemmill.runtime import driver
from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.compile.pool import compile_many
from gemmill.runtime.health.examination import Finding
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.store import Store

KERNELS = (
    "sm90a_f16k16_f16k16_f32_none_f16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear",
    "sm90_f16k16_f16k16_f32_none_f16n16_64x64x32_1x1_multistage_s2_m8_k1_linear",
    "sm90_f16any2_f16any2_f32_none_f16any2_64x64x16_1x1_simt_s2_m8_k1_linear",
    "sm90a_f16k16_f16k16_f32_none_f16any2_8x16x128_1x1_gemv_s2_m1_k1_linear",
)
"""A small kernel of each family, which compiles fast; other GPUs use the same for their architectures."""
EXTENTS = 8, 64, 256
"""M, N and K of a problem that all of them support."""


def kernels() -> Iterator[Finding]:
    """Yield a finding for each family."""
    try:
        devices = [device for device in range(driver.device_count()) if serving(driver.capability(device))]
    except DeviceError:
        devices = []
    targets = serving(driver.capability(devices[0])) if devices else (ARCHS["sm90"], ARCHS["sm90a"])
    configs = list(_configs_for(targets))
    try:
        with tempfile.TemporaryDirectory(prefix="gemmill-doctor-") as scratch:
            store = Store(scratch)
            for outcome in compile_many(configs, store=store):
                what = f"{outcome.config.family} kernel"
                if outcome.error:
                    yield Finding(what, "wrong", f"{outcome.name} does not compile", str(outcome.error))
                    continue
                try:
                    results = [_run(outcome.config, device, store) for device in devices]
                except GemmillError as error:
                    yield Finding(what, "wrong", f"{outcome.name} compiles but does not run", str(error))
                    continue
                yield Finding(what, "ok", ", ".join([f"{outcome.name} compiles", *results]))
    except (GemmillError, OSError) as error:
        yield Finding("kernels", "wrong", "cannot be compiled", str(error))


def _configs_for(targets: Sequence[Any]) -> Iterator[GemmConfig]:
    """Yield the kernels of families that some targets have."""
    for name in KERNELS:
        for target in targets:
            if not verdicts(config := replace(parse_name(name), arch=target.name)):
                yield config
                break


def _run(config: GemmConfig, device: int, store: Store) -> str:
    """Run a kernel on a GPU, and return a text for the report; DeviceError where the result is wrong."""
    m, n, k = EXTENTS
    chance = np.random.default_rng(0)
    a, b = (chance.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    d = np.zeros((m, n), np.float16)
    api = driver.bindings()
    with driver.current(device), ExitStack() as memory:
        views = []
        for array in (a, b, d):
            address = int(driver.check(api.cuMemAlloc(array.nbytes), f"allocating memory on GPU {device}"))
            memory.callback(api.cuMemFree, address)
            driver.check(api.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes), f"writing to GPU {device}")
            views.append(_Array(array, address))
        views[1].__cuda_array_interface__ |= {"shape": (k, n), "strides": (2, 2 * k)}
        matmul(views[0], views[1], out=views[2], kernel=config, registry=Registry(manifests=(), store=store))
        driver.check(api.cuCtxSynchronize(), f"running {kernel_name(config)} on GPU {device}")
        driver.check(api.cuMemcpyDtoH(d.ctypes.data, views[2].address, d.nbytes), f"reading from GPU {device}")
    if not np.array_equal(d, a.astype(np.float32) @ b.T.astype(np.float32)):  # small integers: sums are exact
        raise DeviceError(f"{kernel_name(config)} gives wrong results on GPU {device}, {driver.device_name(device)}")
    return f"runs on GPU {device}"


class _Array:
    """A copy of an array in GPU memory."""

    def __init__(self, array: Any, address: int) -> None:
        self.address = address
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
