"""The parts of one server: storage, compilers, queue, tokens, models, packs and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from gemmill.library.errors import GemmillError, SettingError
from gemmill.library.files import make_private, os_error_text
from gemmill.profiler.sweep.compilers import ClusterCompilers
from gemmill.runtime.compile.pool import CompilePool
from gemmill.runtime.storage.store import Store
from gemmill.service.bucket import Bucket
from gemmill.service.compiling.queue import CompileQueue, Compilers, Quotas
from gemmill.service.compiling.resolver import Resolver
from gemmill.service.compiling.sent_sources import SourceCompiler
from gemmill.service.fleet_models import Models, Records
from gemmill.service.metrics import Metrics
from gemmill.service.pages.listings import Catalogue, RequestedProblems
from gemmill.service.served_kernels import Kernels, Signing
from gemmill.service.served_packs import Packs
from gemmill.service.service_options import Options
from gemmill.service.state_files import Files
from gemmill.service.tokens import Tokens

_SWEEP_SECONDS = 60.0
_PROBE, _PROBE_BYTES = "0" * 64, 1 << 16
"""Key and size of the temporary entry that tests whether the store can be written."""
_log = logging.getLogger(__name__)


class Service:
    """All parts of a server.

    Raises:
        GemmillError: an option is invalid.
        OSError: a file of the options cannot be read.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics()
        self.draining = False
        """Whether the server has received SIGTERM or SIGINT."""
        self._drained = 0.0
        """When the drain period ends, by the monotonic clock."""
        self.body_bytes = 0
        """Bytes of request bodies in memory."""
        self.store = Store(options.store)
        try:
            make_private(options.state)
        except OSError as error:
            raise SettingError(f"--state {os_error_text(error)}") from None
        self.files = Files(options.state, self.metrics)
        self.tokens = Tokens(options.tokens)
        self.signing = Signing.load(options.sign, options.trust)
        self.models = Models(options.state)
        self.resolver = Resolver(self.store, self.models)
        bucket = Bucket(options.bucket, self.metrics) if options.bucket else None
        self.kernels = Kernels(self.store, self.files, self.signing, bucket, self.metrics)
        self.compilers: Compilers
        """Compile the sources that configs emit."""
        if options.scheduler:
            self.compilers = ClusterCompilers(options.scheduler)
        else:
            self.compilers = CompilePool(options.jobs, self.store)
        self.sources = SourceCompiler(self.store, options.state / "empty")
        """Compiles the sources that clients send, with ``--accept-source``."""
        if options.accept_source:
            self.sources.check()
        self.queue = CompileQueue(
            options.jobs,
            options.queue,
            self.compilers,
            self.sources,
            Quotas(options.quota),
            self.kernels,
            self.metrics,
        )
        self.catalogue = Catalogue(self.store)
        self.requested_problems = RequestedProblems()
        self.packs = Packs(options.state, self.resolver, self.kernels, self.queue, self.signing)
        self.records = Records(options.state)
        self.training = asyncio.Lock()
        """Held during the training of a model."""
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the background tasks in the running event loop."""
        self.queue.start()
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Stop the background tasks.

        Running compilations have until the end of the drain period. Uploads to the bucket always finish.
        """
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self.queue.finish(max(0.0, self._drained - time.monotonic()))
        await self.queue.close()
        await self.kernels.settle()

    def drain(self) -> None:
        """Begin to shut down: refuse new compilations and drop the waiting ones."""
        self.draining = True
        self._drained = time.monotonic() + self.options.drain
        self.metrics.draining.set(1)
        self.queue.drop_waiting()

    def readiness(self) -> str:
        """Why the server is not ready; empty if it is."""
        if self.draining:
            return "The server is shutting down."
        if self.store.problem is not None:
            return f"Cannot write to the store: {self.store.problem}"
        return self.compilers.problem

    def try_store(self) -> None:
        """Test again whether the store can be written."""
        self.store.problem = None
        self.store.write(_PROBE, bytes(_PROBE_BYTES), "a probe")
        with suppress(OSError):
            self.store.drop(_PROBE)

    async def _sweep(self) -> None:
        """Every minute, update the metrics of the store and remove the manifests of evicted kernels."""
        while True:
            try:
                stats = await asyncio.to_thread(self.store.stats)
                self.metrics.store_bytes.set(stats.bytes)
                self.metrics.store_kernels.set(stats.entries)
                await asyncio.to_thread(self.kernels.sweep)
            except (GemmillError, OSError) as error:
                _log.error("sweep: %s", error)
            await asyncio.sleep(_SWEEP_SECONDS)
