"""Resolve names and problems to kernels and keys. Only the server needs a toolchain; its clients do not."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from gemmill.emitters import headers_digest
from gemmill.emitters.edited_page import edited
from gemmill.emitters.emit import emit
from gemmill.library.arch import DEFAULT_GPU, GPUS, Gpu, serving
from gemmill.library.config.edited import is_edited
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import GemmillError, ToolchainError
from gemmill.library.problem import GemmProblem
from gemmill.library.version import __version__
from gemmill.library.wording import one_of
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.gpus import figures, with_sms
from gemmill.runtime.storage.store import Store
from gemmill.service.bodies import GpuDescription, KernelRequest, known_gpu
from gemmill.service.fleet_models import Models
from gemmill.service.refusal import Refusal

T = TypeVar("T")
_KEYS = 1 << 16
"""Maximum number of cached keys, by name."""
_REGISTRIES = 8
"""Maximum number of cached registries, one for each GPU."""


@dataclass(frozen=True, slots=True)
class KeyedKernel:
    """A kernel and its key in the store."""

    name: str
    config: GemmConfig
    key: str
    source: str | None = None
    """The source that a client sent; None to compile the source that the config emits."""


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that runs the kernels."""

    gpu: Gpu
    driver_cuda: tuple[int, int] | None


class Resolver:
    """Resolves names and problems in a thread, one after the other, since a first selection takes a second."""

    def __init__(self, store: Store, models: Models) -> None:
        self._store, self._models = store, models
        self._thread = ThreadPoolExecutor(1, "resolve")
        self._keys: OrderedDict[str, KeyedKernel] = OrderedDict()
        self._registries: OrderedDict[tuple[Gpu, str], Registry] = OrderedDict()

    @cached_property
    def compiler(self) -> Compiler:
        """Computes keys; ToolchainError without a toolchain."""
        return Compiler(store=self._store)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work in the thread; a GemmillError becomes a Refusal."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: with_refusals(work))

    async def keyed(self, name: str) -> KeyedKernel:
        """The kernel of a name."""
        if (kernel := self._keys.get(name)) is None:
            kernel = await self.in_thread(lambda: self._kernel_of_name(name))
            self._keys[name] = kernel
            if len(self._keys) > _KEYS:
                self._keys.popitem(last=False)
        return kernel

    async def sent(self, name: str, source: str) -> KeyedKernel:
        """The kernel of an edited source; ``name`` is the kernel that the source was generated for."""
        return await self.in_thread(lambda: self._kernel_of_source(name, source))

    async def choice(self, problem: str, gpu: Gpu, bits: str, sm_count: int | None = None) -> Choice:
        """The kernel selected for a problem, and the reason."""
        return await self.in_thread(
            lambda: self.registry(gpu).select(GemmProblem.from_text(problem), sm_count, bits)  # raises ProblemError
        )

    def registry(self, gpu: Gpu) -> Registry:
        """The registry of all built-in kernels for a GPU, with the model published for it."""
        folder = self._models.folder(gpu.name)
        place = gpu, "" if folder is None else folder.name
        if (registry := self._registries.get(place)) is None:
            registry = self._registries[place] = self._registry_with(gpu, folder)
            if len(self._registries) > _REGISTRIES:
                self._registries.popitem(last=False)
        return registry

    def new_registry(self, gpu: Gpu) -> Registry:
        """The same, for work beside the thread, since it takes long."""
        return self._registry_with(gpu, self._models.folder(gpu.name))

    def check_target(self, kernel: KeyedKernel, target: Target) -> None:
        """Raise Refusal 422 if the machine cannot run the kernel."""
        archs = [arch.name for arch in serving(target.gpu.capability)]
        if kernel.config.arch not in archs:
            support = f"runs {one_of(archs)}" if archs else "is not supported"
            raise Refusal(422, "arch", f"{kernel.name} is for {kernel.config.arch}; {target.gpu.name} {support}.")
        cuda = int(self.compiler.toolchain.versions["nvrtc"].partition(".")[0])
        if target.driver_cuda is not None and target.driver_cuda[0] < cuda:
            driver = ".".join(map(str, target.driver_cuda))
            raise Refusal(
                422,
                "driver",
                f"The driver supports CUDA {driver}; this server compiles with CUDA {cuda}.",
                "update the driver, or use a server with an older CUDA",
            )

    def _registry_with(self, gpu: Gpu, model: Path | None) -> Registry:
        return Registry(packs=(), store=self._store, gpu=gpu, model=model)

    def _kernel_of_name(self, name: str) -> KeyedKernel:
        if is_edited(name):
            raise Refusal(
                422,
                "source",
                f"{name} is an edited kernel; its name does not determine its source.",
                "send the source",
            )
        config = parse_name(name)
        return KeyedKernel(kernel_name(config), config, self.compiler.key(emit(config), config))

    def _kernel_of_source(self, name: str, text: str) -> KeyedKernel:
        config = parse_name(name)
        source = edited(config, text)
        return KeyedKernel(source.name, config, self.compiler.key(source, config), text)


def target(request: KernelRequest) -> Target:
    """The machine of a request; without a GPU, the default GPU of the selector.

    Raises:
        Refusal: 409 if the client has another version of gemmill, in which a name may mean another kernel; 422 for a
            GPU that the selector does not know.
    """
    for label, client_value, server_value in (
        ("gemmill", request.gemmill, __version__),
        ("headers", request.headers, headers_digest()),
    ):
        if client_value is not None and client_value != server_value:
            raise Refusal(
                409,
                "version",
                f"Different {label}: the client has {client_value[:64]!r}, the server {server_value!r}.",
                "install the same version of gemmill on client and server",
            )
    if (gpu := request.gpu) is None:
        return Target(DEFAULT_GPU, request.driver_cuda)
    row = _figures(gpu)
    return Target(row if gpu.sm_count is None else with_sms(row, gpu.sm_count, gpu.name), request.driver_cuda)


def _figures(gpu: GpuDescription) -> Gpu:
    """The figures of a client's GPU. Without figures for its name, its architecture must be known."""
    if gpu.arch is not None:
        digits = gpu.arch.strip("smaf")
        return figures(gpu.name, (int(digits[:-1]), int(digits[-1])))
    if gpu.name.startswith(tuple(GPUS)):
        return figures(gpu.name)
    return known_gpu(gpu.name, "for another GPU, also send its arch")


def with_refusals(work: Callable[[], T]) -> T:
    """The result of work; a GemmillError becomes a Refusal."""
    try:
        return work()
    except ToolchainError as error:
        raise Refusal(503, "toolchain", str(error), "install gemmill's extra cu12 or cu13 on the server") from None
    except GemmillError as error:
        raise Refusal(422, error.code(), str(error)) from None
