"""The CUDA driver as a launcher needs it: contexts, kernels loaded on a device, prepared launches, capture state.

Nothing here touches the driver before it is called, so the module imports where there is no GPU. Contexts are the
primary contexts that the CUDA runtime, and so PyTorch and CuPy, use.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemmill.library.arch import ARCHS
from gemmill.library.errors import CaptureError, DeviceError
from gemmill.runtime.storage.artifact import Artifact

CAPTURE_ERRORS = range(900, 909)
"""``CUresult`` values that say a call clashed with a stream capture (cuda.h, ``CUDA_ERROR_STREAM_CAPTURE_*``)."""

_lock = threading.Lock()
_kernels: dict[tuple[int, str], Kernel] = {}


@functools.cache
def bindings() -> Any:
    """``cuda.bindings.driver``, initialised; DeviceError where there is no driver."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(f"cuda.bindings cannot be imported ({error}): pip install cuda-bindings") from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise DeviceError(f"no CUDA driver: {error}") from error
    if status:
        raise DeviceError(f"the CUDA driver does not start: {status.name}; nvidia-smi says whether it sees a GPU")
    return driver


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value a driver call returned, or an exception that says what was being done when it failed."""
    status, *values = result
    if status:
        raise failure(status, what)
    return values[0] if values else None


def failure(status: Any, what: str) -> CaptureError | DeviceError:
    """The exception for a driver status other than success."""
    if int(status) in CAPTURE_ERRORS:
        return CaptureError(f"{what}: {status.name}; do it before a stream capture begins")
    fork = "; a process forked after CUDA was initialised cannot use it: start workers with spawn"
    return DeviceError(f"{what}: {status.name}{fork if int(status) == 3 else ''}")


@functools.cache
def device_count() -> int:
    """GPUs the driver shows to this process."""
    return int(check(bindings().cuDeviceGetCount(), "counting GPUs"))


@functools.cache
def device_name(device: int) -> str:
    """Name of a GPU as the driver reports it."""
    driver = bindings()
    handle = check(driver.cuDeviceGet(device), f"opening GPU {device}")
    raw: bytes = check(driver.cuDeviceGetName(256, handle), f"naming GPU {device}")
    return raw.split(b"\0", 1)[0].decode()


@functools.cache
def capability(device: int) -> tuple[int, int]:
    """Compute capability of a GPU."""
    what = f"reading the capability of GPU {device}"
    major, minor = (_attribute(device, f"COMPUTE_CAPABILITY_{part}", what) for part in ("MAJOR", "MINOR"))
    return major, minor


@functools.cache
def uuid(device: int) -> str:
    """What names a GPU on its machine, whichever of them CUDA shows: ``GPU-...``."""
    from uuid import UUID  # the path to the first launch has no use for it

    driver = bindings()
    handle = check(driver.cuDeviceGet(device), f"opening GPU {device}")
    raw = check(driver.cuDeviceGetUuid(handle), f"identifying GPU {device}")
    return f"GPU-{UUID(bytes=raw.bytes)}"


@functools.cache
def sm_count(device: int) -> int:
    """How many SMs a GPU, or the slice of one that CUDA shows, has."""
    return _attribute(device, "MULTIPROCESSOR_COUNT", f"counting the SMs of GPU {device}")


def _attribute(device: int, name: str, what: str) -> int:
    """``CU_DEVICE_ATTRIBUTE_<name>`` of a GPU."""
    driver = bindings()
    handle = check(driver.cuDeviceGet(device), f"opening GPU {device}")
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver.cuDeviceGetAttribute(attribute, handle), what))


def overlaps(device: int) -> bool:
    """Whether a GPU has programmatic dependent launch, and with it thread block clusters: both came with 9.0."""
    return capability(device) >= (9, 0)


@functools.cache
def context(device: int) -> Any:
    """The primary context of a GPU, retained for the life of the process."""
    driver = bindings()
    handle = check(driver.cuDeviceGet(device), f"opening GPU {device} of {device_count()}")
    return check(driver.cuDevicePrimaryCtxRetain(handle), f"retaining the primary context of GPU {device}")


@contextmanager
def current(device: int) -> Iterator[None]:
    """Make a GPU's primary context current in this thread, and restore what was current before.

    A thread that had no context keeps this one, as it would after its first call of the CUDA runtime.
    """
    driver = bindings()
    mine = context(device)
    before = check(driver.cuCtxGetCurrent(), "reading the current context")
    check(driver.cuCtxSetCurrent(mine), f"entering the context of GPU {device}")
    try:
        yield
    finally:
        if int(before):
            check(driver.cuCtxSetCurrent(before), "restoring the current context")


def device_of(pointer: int) -> int | None:
    """The GPU that holds the memory at an address; None for memory that CUDA does not know."""
    driver = bindings()
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, device = driver.cuPointerGetAttribute(attribute, pointer)
    if int(status) == 1 or (not status and int(device) < 0):  # CUDA_ERROR_INVALID_VALUE: not CUDA's
        return None
    return int(check((status, device), f"asking which GPU holds address {pointer:#x}"))


def is_capturing(device: int, stream: int) -> bool:
    """Whether work on a stream goes into a CUDA graph, or would break the capture of another stream."""
    driver = bindings()
    with current(device):
        status, capture = driver.cuStreamIsCapturing(stream)
    if int(status) in CAPTURE_ERRORS:
        return True
    check((status,), f"asking whether stream {stream:#x} is being captured")
    return bool(capture)


def fill(device: int, stream: int, address: int, word: int, count: int) -> None:
    """Fill ``count`` 32-bit words with one value, in the order of a stream of the GPU."""
    with current(device):
        check(bindings().cuMemsetD32Async(address, word, count, stream), f"filling {count} words at {address:#x}")


def compiled(device: int, ptx: str, entry: str, purpose: str) -> Any:
    """A kernel of a text in PTX, which the driver compiles for a GPU; it stays for the life of the process. Errors name
    its purpose."""
    driver = bindings()
    what = f"having the driver compile {entry}, {purpose}, for GPU {device}"
    with current(device):
        module = check(driver.cuModuleLoadData(ptx.encode() + b"\0"), what)
        return check(driver.cuModuleGetFunction(module, entry.encode()), f"finding {entry}")


def load(device: int, artifact: Artifact) -> Kernel:
    """Load a kernel on a GPU, once; it stays for the life of the process, since CUDA graphs may refer to it.

    DeviceError where the GPU cannot run it; CaptureError where the driver refuses because of a stream capture.
    """
    key = device, artifact.digest
    with _lock:
        if key not in _kernels:
            _kernels[key] = Kernel(device, artifact)
        return _kernels[key]


class Kernel:
    """A kernel loaded on one GPU, ready to be launched there."""

    def __init__(self, device: int, artifact: Artifact) -> None:
        self.device = device
        self.config = artifact.config
        self.spec = spec = artifact.launch
        target = ARCHS[artifact.config.arch]
        if capability(device) != target.capability:
            have, need = (".".join(map(str, pair)) for pair in (capability(device), target.capability))
            raise DeviceError(
                f"{spec.entry} is compiled for {target.nvrtc} (compute capability {need}); GPU {device}, "
                f"{device_name(device)}, has {have}"
            )
        driver = bindings()
        with current(device):
            module = check(driver.cuModuleLoadData(artifact.cubin), f"loading {spec.entry} on GPU {device}")
            self.function = check(driver.cuModuleGetFunction(module, spec.entry.encode()), f"finding {spec.entry}")
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                driver.cuFuncSetAttribute(self.function, attribute, spec.shared_bytes),
                f"giving {spec.entry} {spec.shared_bytes} bytes of shared memory",
            )
            self.reduction = None
            if spec.parts and spec.parts.reduction:
                entry = spec.parts.reduction.entry
                self.reduction = check(driver.cuModuleGetFunction(module, entry.encode()), f"finding {entry}")
            self.max_clusters = self._max_active_clusters()
        if self.max_clusters < 1:
            raise DeviceError(
                f"{spec.entry}: no cluster of {spec.cluster_blocks} blocks fits GPU {device}, "
                f"{device_name(device)}; take a kernel with a smaller cluster"
            )

    def _max_active_clusters(self) -> int:
        """Clusters that the whole GPU holds at a time."""
        driver = bindings()
        if not overlaps(self.device):
            what = f"asking how many blocks of {self.spec.entry} an SM of GPU {self.device} holds"
            blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self.function, self.spec.threads, self.spec.shared_bytes
            )
            return int(check(blocks, what)) * sm_count(self.device)
        size = self.spec.cluster_blocks
        cluster = driver.CUlaunchAttribute()
        cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = size, 1, 1
        config = _launch_config(size, self.spec.threads, self.spec.shared_bytes)
        config.attrs, config.numAttrs = [cluster], 1
        what = f"asking how many clusters of {self.spec.entry} GPU {self.device} holds"
        return int(check(driver.cuOccupancyMaxActiveClusters(self.function, config), what))

    def prepare(self, blocks: int, arguments: int) -> PreparedLaunch:
        """A launch of ``blocks`` blocks; ``arguments`` is the address of the ``void*`` that points at the struct."""
        spec = self.spec
        return PreparedLaunch(
            self.device, spec.entry, self.function, blocks, spec.threads, spec.shared_bytes, arguments
        )

    def prepare_reduction(self, blocks: int, arguments: int) -> PreparedLaunch:
        """The same for the second kernel of a split kernel, which takes the same parameters."""
        reduction = self.spec.parts and self.spec.parts.reduction
        assert reduction, f"{self.spec.entry} has no second kernel"
        return PreparedLaunch(self.device, reduction.entry, self.reduction, blocks, reduction.threads, 0, arguments)


def _launch_config(blocks: int, threads: int, shared_bytes: int) -> Any:
    config = bindings().CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    return config


class PreparedLaunch:
    """A launch with everything set but the stream. One thread at a time: the stream is written into shared state.

    The kernel's prologue may overlap the end of the kernel before it in the stream (programmatic dependent launch); it
    waits for that kernel before it touches global memory. ``arguments`` is the address of its ``kernelParams``.
    """

    __slots__ = ("_arguments", "_config", "_device", "_entry", "_function", "_launch", "_stream")

    def __init__(
        self, device: int, entry: str, function: Any, blocks: int, threads: int, shared_bytes: int, arguments: int
    ) -> None:
        self._device = device
        self._entry = entry
        self._function = function
        self._arguments = arguments
        self._config = _launch_config(blocks, threads, shared_bytes)
        if overlaps(device):
            driver = bindings()
            overlap = driver.CUlaunchAttribute()
            overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            overlap.value.programmaticStreamSerializationAllowed = 1
            self._config.attrs, self._config.numAttrs = [overlap], 1
        self._launch = bindings().cuLaunchKernelEx
        self._stream = 0

    def launch(self, stream: int) -> None:
        """Launch on a stream of the kernel's GPU. The parameters are copied before this returns."""
        if stream != self._stream:
            self._config.hStream = self._stream = stream
        (status,) = self._launch(self._config, self._function, self._arguments, 0)
        if status:
            self._relaunch(status)

    def _relaunch(self, status: Any) -> None:
        """Launch in the right context; asking for the current one before each launch would slow all of them."""
        driver = bindings()
        here = check(driver.cuCtxGetCurrent(), "reading the current context")
        if int(here) != int(context(self._device)):
            with current(self._device):
                (status,) = self._launch(self._config, self._function, self._arguments, 0)
        check((status,), f"launching {self._entry} on GPU {self._device}")
