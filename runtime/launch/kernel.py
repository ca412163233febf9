"""Kernels loaded on a GPU, and launches that are complete except for the stream."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from gemmill.library.arch import ARCHS, serving
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.workspace_layout import in_slices
from gemmill.library.errors import DeviceError
from gemmill.runtime.driver import bindings, capability, check, context, current, device_name, overlaps, sm_count
from gemmill.runtime.storage.artifact import Artifact

_lock = threading.Lock()
_kernels: dict[tuple[int, str, GemmConfig, int], Kernel] = {}
_modules: dict[tuple[int, str], Any] = {}
"""Loaded modules by GPU and digest; several kernels, with different slices of K, may share one."""


def load(device: int, artifact: Artifact, slices: int = 1) -> Kernel:
    """Load a kernel on a GPU for launches with some slices of K, once. It stays loaded for the life of the process,
    since CUDA graphs may refer to it.

    Raises:
        DeviceError: the GPU cannot run it.
        CaptureError: the driver refuses because of a stream capture.
    """
    key = device, artifact.digest, artifact.config, slices
    with _lock:
        if key not in _kernels:
            _kernels[key] = Kernel(device, artifact, slices)
        return _kernels[key]


class Kernel:
    """A kernel loaded on one GPU, for launches with a fixed number of slices of K."""

    def __init__(self, device: int, artifact: Artifact, slices: int) -> None:
        self.device = device
        self.config = artifact.config
        self.slices = slices
        self.spec = spec = in_slices(artifact.launch, slices)
        target = ARCHS[artifact.config.arch]
        if target not in serving(capability(device)):
            have, need = (".".join(map(str, pair)) for pair in (capability(device), target.capability))
            raise DeviceError(
                f"{spec.entry} was compiled for {target.nvrtc} (compute capability {need}); GPU {device}, "
                f"{device_name(device)}, has {have}: use a kernel for its architecture"
            )
        driver = bindings()
        with current(device):
            if (module := _modules.get((device, artifact.digest))) is None:
                module = check(driver.cuModuleLoadData(artifact.cubin), f"loading {spec.entry} on GPU {device}")
                _modules[device, artifact.digest] = module
            self.function = check(driver.cuModuleGetFunction(module, spec.entry.encode()), f"finding {spec.entry}")
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                driver.cuFuncSetAttribute(self.function, attribute, spec.shared_bytes),
                f"reserving {spec.shared_bytes} bytes of shared memory for {spec.entry}",
            )
            self.reduction = None
            if spec.k_decomposition and spec.k_decomposition.reduction:
                entry = spec.k_decomposition.reduction.entry
                self.reduction = check(driver.cuModuleGetFunction(module, entry.encode()), f"finding {entry}")
            self.max_clusters = self._max_active_clusters()
        if self.max_clusters < 1:
            raise DeviceError(
                f"{spec.entry}: no cluster of {spec.cluster_ctas} CTAs fits GPU {device}, "
                f"{device_name(device)}: use a kernel with a smaller cluster"
            )

    def _max_active_clusters(self) -> int:
        """Return how many clusters the whole GPU holds at a time."""
        driver = bindings()
        if not overlaps(self.device):
            what = f"reading how many CTAs of {self.spec.entry} fit an SM of GPU {self.device}"
            ctas = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self.function, self.spec.threads, self.spec.shared_bytes
            )
            return int(check(ctas, what)) * sm_count(self.device)
        size = self.spec.cluster_ctas
        cluster = driver.CUlaunchAttribute()
        cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = size, 1, 1
        config = _launch_config(size, self.spec.threads, self.spec.shared_bytes)
        config.attrs, config.numAttrs = [cluster], 1
        what = f"reading how many clusters of {self.spec.entry} fit GPU {self.device}"
        return int(check(driver.cuOccupancyMaxActiveClusters(self.function, config), what))

    def prepare(self, ctas: int, arguments: int) -> PreparedLaunch:
        """Return a launch of ``ctas`` CTAs; ``arguments`` is the address of the ``void*`` that points at the
        parameters."""
        spec = self.spec
        return PreparedLaunch(self.device, spec.entry, self.function, ctas, spec.threads, spec.shared_bytes, arguments)

    def prepare_reduction(self, ctas: int, arguments: int) -> PreparedLaunch:
        """Return the same for the second kernel of a split-K kernel, which takes the same parameters."""
        reduction = self.spec.k_decomposition and self.spec.k_decomposition.reduction
        assert reduction, f"{self.spec.entry} has no second kernel"
        return PreparedLaunch(self.device, reduction.entry, self.reduction, ctas, reduction.threads, 0, arguments)


def _launch_config(ctas: int, threads: int, shared_bytes: int, is_overlapping: bool = False) -> Any:
    config = bindings().CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    if is_overlapping:
        config.attrs, config.numAttrs = [_overlap()], 1
    return config


@functools.cache
def _overlap() -> Any:
    """Return the launch attribute of programmatic dependent launch, which all launches share."""
    driver = bindings()
    overlap = driver.CUlaunchAttribute()
    overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    overlap.value.programmaticStreamSerializationAllowed = 1
    return overlap


class PreparedLaunch:
    """A launch that is complete except for the stream.

    With programmatic dependent launch, the prologue of the kernel may overlap the end of the previous kernel in the
    stream; it waits for that kernel before it accesses global memory. ``arguments`` is the address of its
    ``kernelParams``.
    """

    __slots__ = ("_arguments", "_configs", "_device", "_entry", "_function", "_launch", "_new_config")

    def __init__(
        self, device: int, entry: str, function: Any, ctas: int, threads: int, shared_bytes: int, arguments: int
    ) -> None:
        self._device = device
        self._entry = entry
        self._function = function
        self._arguments = arguments
        self._new_config = functools.partial(_launch_config, ctas, threads, shared_bytes, overlaps(device))
        self._configs: dict[int, Any] = {}
        """Configs by stream."""
        self._launch = bindings().cuLaunchKernelEx

    def launch(self, stream: int) -> None:
        """Launch on a stream of the kernel's GPU. CUDA copies the parameters before this returns."""
        call = self.bind(stream, self._arguments)
        (status,) = call()
        if status:
            self.relaunch(status, call)

    def bind(self, stream: int, arguments: int) -> Callable[[], tuple[Any]]:
        """Return the driver's call for a stream, with parameters at another address; it returns the status."""
        if (config := self._configs.get(stream)) is None:
            config = self._new_config()
            config.hStream = stream
            self._configs[stream] = config
        return functools.partial(self._launch, config, self._function, arguments, 0)

    def relaunch(self, status: Any, call: Callable[[], tuple[Any]]) -> None:
        """Repeat a call that failed in the right context. Reading the current context before each launch would slow
        down all of them."""
        driver = bindings()
        here = check(driver.cuCtxGetCurrent(), "reading the current context")
        if int(here) != int(context(self._device)):
            with current(self._device):
                (status,) = call()
        check((status,), f"launching {self._entry} on GPU {self._device}")
