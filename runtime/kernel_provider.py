"""Provides a kernel from the cheapest source: the store, a remote or the compiler.

With a toolchain, gemmill computes the key of a kernel and accepts only a kernel with that key: exactly the bits that it
would compile. Without one, it requests the kernel from a remote by name and accepts what any toolchain made from the
same source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from gemmill.emitters.emit import EmittedSource, emit
from gemmill.library.arch import Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import RemoteError, ToolchainError
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.kernel_keys import KernelKeys
from gemmill.runtime.host_gpu import machine
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store

if TYPE_CHECKING:  # most processes have no remote, and do without HTTP and signatures
    from gemmill.runtime.compile.pool import Outcome
    from gemmill.runtime.storage.remote.client import Remote
    from gemmill.runtime.storage.remote.misses import Miss

_AT_A_TIME = 8
"""Concurrent requests to a remote."""


class KernelProvider:
    """The source of kernels that are in no pack. Threads may share one.

    Args:
        store: searched first; keeps kernels from other sources.
        remote: searched next.
        gpu: the GPU that the kernels run on.
        packs: how many packs were searched before, for messages.
    """

    def __init__(self, store: Store, remote: Remote | None, gpu: Gpu, packs: int = 0) -> None:
        self._store, self._remote, self._gpu, self._packs = store, remote, gpu, packs

    def find(self, name: str) -> Artifact | None:
        """Return the kernel of a name from the store by its key, without emitting its source; None where the store does
        not have it, or its key is not recorded. Headers are checked once."""
        return None if self._keys is None else self._keys.find(name)

    @cached_property
    def _keys(self) -> KernelKeys | None:
        """None where nothing can be compiled."""
        with suppress(RemoteError, ToolchainError):
            return KernelKeys(self._store, self._compiler())
        return None

    def provide(self, source: EmittedSource, config: GemmConfig) -> Artifact:
        """Return the kernel of a source.

        Raises:
            ToolchainError: no source has it, and NVRTC or headers are missing, conflict, or no longer support its
                target.
            RemoteError: no source has it, and the mode of the remote forbids compiling.
            CompileError: it does not compile.
        """
        try:
            compiler = self._compiler()
        except (RemoteError, ToolchainError) as error:
            reply = self._by_name(source)
            if isinstance(reply, Artifact):
                return reply
            name, packs = source.name, self._packs
            places = f"none of the {packs} packs holds {name}" if packs else f"{name} is not loaded"
            remote = f", the remote does not have it ({reply.says})" if reply else ""
            raise type(error)(f"{places}{remote}, and it cannot be compiled here: {error}") from error
        start, seconds = time.monotonic(), 0.0

        def make() -> Artifact:
            nonlocal seconds
            if isinstance(reply := self._request(source, key, start), Artifact):
                return reply
            seconds = self._seconds_left(start)
            return compiler.compile(source, config)

        key = compiler.key(source, config)
        artifact, _ = self._store.get_or_make(key, make)
        self._remember(compiler, source, key)
        if seconds > 0:
            self._upload(artifact, seconds)
        return artifact

    def provide_many(
        self, configs: Sequence[GemmConfig], jobs: int | None, on_done: Callable[[Outcome], None] | None
    ) -> tuple[dict[str, Artifact], list[str]]:
        """Return kernels by name, and the errors of those that do not compile.

        Args:
            configs: the kernels.
            jobs: worker processes that compile.
            on_done: called for each kernel as it finishes.

        Raises:
            RemoteError, ToolchainError: as for :meth:`provide`; names each missing kernel.
        """
        from gemmill.runtime.compile.pool import Outcome, compile_many

        fetched = {} if self._remote is None else self.fetch(configs)
        artifacts = {name: kernel for name, kernel in fetched.items() if isinstance(kernel, Artifact)}
        self._check(fetched)
        if on_done is not None:
            for artifact in artifacts.values():
                on_done(Outcome(artifact.config, artifact, None, True, 0.0, ""))
        missing = [config for config in configs if kernel_name(config) not in artifacts]
        outcomes = compile_many(missing, jobs=jobs, store=self._store, on_done=on_done)
        for outcome in outcomes:
            if outcome.artifact is not None:
                artifacts[outcome.name] = outcome.artifact
                if not outcome.cached:
                    self._upload(outcome.artifact)
        return artifacts, [str(outcome.error) for outcome in outcomes if outcome.error is not None]

    def _check(self, fetched: Mapping[str, Artifact | Miss | None]) -> None:
        """Raise RemoteError or ToolchainError where the remote does not have kernels and none can be compiled here."""
        missing = [
            f"{name}: {result.says}" for name, result in fetched.items() if result and not isinstance(result, Artifact)
        ]
        if missing:
            try:
                self._compiler()
            except (RemoteError, ToolchainError) as error:
                reasons = "\n".join(missing)
                raise type(error)(
                    f"{error}; the remote does not have {len(missing)} of {len(fetched)} kernels:\n{reasons}"
                ) from error

    def fetch(self, configs: Sequence[GemmConfig]) -> dict[str, Artifact | Miss | None]:
        """Fetch kernels from the remote into the store. Return each by its name, or the reason why the remote does not
        have it; None where the store has it already."""
        from concurrent.futures import ThreadPoolExecutor

        try:
            compiler = self._compiler()
        except (RemoteError, ToolchainError):
            compiler = None

        def fetched(config: GemmConfig) -> Artifact | Miss | None:
            source = emit(config)
            if compiler is None:
                return self._by_name(source)
            reply = self._by_key(source, key := compiler.key(source, config))
            if reply is None or isinstance(reply, Artifact):
                self._remember(compiler, source, key)
            return reply

        with ThreadPoolExecutor(min(_AT_A_TIME, len(configs))) as threads:
            return dict(zip(map(kernel_name, configs), threads.map(fetched, configs), strict=True))

    def _remember(self, compiler: Compiler, source: EmittedSource, key: str) -> None:
        """Record the key of a kernel, so that the store finds it by name. Edited kernels are only found by their
        source."""
        if self._keys is not None and not source.is_edited:
            self._keys.add(compiler, source.name, key)

    def _upload(self, artifact: Artifact, seconds: float | None = None) -> None:
        """Upload a kernel that was compiled here from a config, if the remote accepts uploads."""
        if self._remote is not None and self._remote.mode == "readwrite" and not artifact.is_edited:
            self._remote.put(artifact, seconds=seconds)

    def _compiler(self) -> Compiler:
        if self._remote is not None and self._remote.mode == "only":
            raise RemoteError(
                "the remote's mode is only, which forbids compiling; set GEMMILL_REMOTE_MODE=read to compile kernels "
                "that the remote does not have"
            )
        return Compiler(store=self._store)

    def _by_key(self, source: EmittedSource, key: str) -> Artifact | Miss | None:
        """Return the kernel of a key from the remote; None where the store has it."""
        start = time.monotonic()
        if self._store.holds(key):
            return None
        with self._store.hold_lock(key):
            if self._store.holds(key):
                return None
            if isinstance(reply := self._request(source, key, start), Artifact):
                self._store.put(key, reply)
            return reply

    def _by_name(self, source: EmittedSource) -> Artifact | Miss | None:
        """Return a kernel that any toolchain made from a source, from the store or the remote; None where there is
        none."""
        from gemmill.runtime.storage.remote.protocol import RequestedKernel

        start, requested = time.monotonic(), RequestedKernel.of(source)
        if (stored := requested.find_in(self._store)) is not None or self._remote is None:
            return stored
        with self._store.hold_lock(requested.note):
            if (stored := requested.find_in(self._store)) is not None:
                return stored
            if isinstance(reply := self._request(source, None, start), Artifact):
                requested.keep(self._store, reply)
            return reply

    def _request(self, source: EmittedSource, key: str | None, start: float) -> Artifact | Miss | None:
        """Request a kernel from the remote, if there is one. Edited kernels are never requested."""
        if self._remote is None or source.is_edited:
            return None
        from gemmill.runtime.storage.remote.protocol import RequestedKernel

        return self._remote.kernel(
            RequestedKernel.of(source, key), machine(self._gpu), self._seconds_left(start), patient=key is None
        )

    def _seconds_left(self, start: float) -> float:
        """Return the seconds left of the remote's deadline since ``start``; waiting for another process that requests
        the same kernel counts too."""
        return 0.0 if self._remote is None else self._remote.deadline - (time.monotonic() - start)
