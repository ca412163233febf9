"""The CUDA driver: properties of GPUs and memory, contexts, capture state, and errors that name the failed operation.

Importing this module does not need a GPU; only calls use the driver. Contexts are the primary contexts, which the CUDA
runtime, and so PyTorch and CuPy, use too.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemmill.library.errors import CaptureError, DeviceError

CAPTURE_ERRORS = range(900, 909)
"""``CUresult`` values for calls that conflict with a stream capture (cuda.h, ``CUDA_ERROR_STREAM_CAPTURE_*``)."""


@functools.cache
def bindings() -> Any:
    """Return ``cuda.bindings.driver``, initialised; DeviceError where there is no driver."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        from gemmill.library.extras import cuda_major, install  # only errors need them

        way_out = install(f"cu{cuda_major()}", ("cuda-python",))
        raise DeviceError(f"cuda.bindings cannot be imported ({error}): {way_out}") from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        why = "" if type(error).__name__ == "DynamicLibNotFoundError" else f" ({error})"
        raise DeviceError(f"the CUDA driver cannot be loaded{why}; install NVIDIA's driver") from error
    if status:
        raise DeviceError(
            f"the CUDA driver cannot be initialised: {status.name}; check with nvidia-smi whether it finds a GPU"
        )
    return driver


def check(result: tuple[Any, ...], what: str) -> Any:
    """Return the value of a driver call, or raise an exception that names the failed operation."""
    status, *values = result
    if status:
        raise failure(status, what)
    return values[0] if values else None


def failure(status: Any, what: str) -> CaptureError | DeviceError:
    """Return the exception for a driver status other than success."""
    if int(status) in CAPTURE_ERRORS:
        return CaptureError(f"{what}: {status.name}; run it before a stream capture starts")
    fork = "; a process that was forked after CUDA was initialised cannot use CUDA: start workers with spawn"
    return DeviceError(f"{what}: {status.name}{fork if int(status) == 3 else ''}")


@functools.cache
def cuda_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports, major and minor."""
    version = int(check(bindings().cuDriverGetVersion(), "reading the driver's version"))
    return version // 1000, version // 10 % 100


@functools.cache
def device_count() -> int:
    """Return how many GPUs this process sees."""
    return int(check(bindings().cuDeviceGetCount(), "counting GPUs"))


@functools.cache
def device_name(device: int) -> str:
    """Return the name of a GPU from the driver."""
    raw: bytes = check(bindings().cuDeviceGetName(256, _handle(device)), f"reading the name of GPU {device}")
    return raw.split(b"\0", 1)[0].decode()


@functools.cache
def capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a GPU."""
    what = f"reading the capability of GPU {device}"
    major, minor = (_attribute(device, f"COMPUTE_CAPABILITY_{part}", what) for part in ("MAJOR", "MINOR"))
    return major, minor


@functools.cache
def uuid(device: int) -> str:
    """Return the id of a GPU that is unique on its machine, independent of which GPUs CUDA shows: ``GPU-...``."""
    from uuid import UUID  # deferred: the path to the first launch does not need it

    raw = check(bindings().cuDeviceGetUuid(_handle(device)), f"reading the UUID of GPU {device}")
    return f"GPU-{UUID(bytes=raw.bytes)}"


@functools.cache
def sm_count(device: int) -> int:
    """Return the number of SMs of a GPU, or of the slice of one that CUDA shows."""
    return _attribute(device, "MULTIPROCESSOR_COUNT", f"counting the SMs of GPU {device}")


def _attribute(device: int, name: str, what: str) -> int:
    """Return ``CU_DEVICE_ATTRIBUTE_<name>`` of a GPU."""
    driver = bindings()
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver.cuDeviceGetAttribute(attribute, _handle(device)), what))


def _handle(device: int) -> Any:
    return check(bindings().cuDeviceGet(device), f"opening GPU {device} of {device_count()}")


def overlaps(device: int) -> bool:
    """Whether a GPU has programmatic dependent launch and thread block clusters: both came with 9.0."""
    return capability(device) >= (9, 0)


@functools.cache
def context(device: int) -> Any:
    """Return the primary context of a GPU, retained for the life of the process."""
    what = f"retaining the primary context of GPU {device}"
    return check(bindings().cuDevicePrimaryCtxRetain(_handle(device)), what)


@contextmanager
def current(device: int) -> Iterator[None]:
    """Make a GPU's primary context current in this thread, and restore the previous one afterwards.

    A thread without a context keeps this one, as after its first call of the CUDA runtime.
    """
    driver = bindings()
    context_of_device = context(device)
    previous = check(driver.cuCtxGetCurrent(), "reading the current context")
    check(driver.cuCtxSetCurrent(context_of_device), f"entering the context of GPU {device}")
    try:
        yield
    finally:
        if int(previous):
            check(driver.cuCtxSetCurrent(previous), "restoring the current context")


def device_of(pointer: int) -> int | None:
    """Return the GPU that holds the memory at an address; None for memory that is not CUDA's."""
    driver = bindings()
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, device = driver.cuPointerGetAttribute(attribute, pointer)
    if int(status) == 1 or (not status and int(device) < 0):  # CUDA_ERROR_INVALID_VALUE: not CUDA's
        return None
    return int(check((status, device), f"reading which GPU holds address {pointer:#x}"))


def is_capturing(device: int, stream: int) -> bool:
    """Whether work on a stream goes into a CUDA graph, or would break the capture of another stream."""
    driver = bindings()
    with current(device):
        status, capture = driver.cuStreamIsCapturing(stream)
    if int(status) in CAPTURE_ERRORS:
        return True
    check((status,), f"reading whether stream {stream:#x} is being captured")
    return bool(capture)


def fill(device: int, stream: int, address: int, word: int, count: int) -> None:
    """Fill ``count`` 32-bit words with one value, in the order of a stream of the GPU."""
    with current(device):
        check(bindings().cuMemsetD32Async(address, word, count, stream), f"filling {count} words at {address:#x}")


def compiled(device: int, ptx: str, entry: str, purpose: str) -> Any:
    """Return a kernel from PTX, which the driver compiles for a GPU; it stays loaded for the life of the process.
    Errors name its purpose."""
    driver = bindings()
    what = f"compiling {entry}, {purpose}, for GPU {device}"
    with current(device):
        module = check(driver.cuModuleLoadData(ptx.encode() + b"\0"), what)
        return check(driver.cuModuleGetFunction(module, entry.encode()), f"finding {entry}")
